"""The fleet as this router sees it: workers, their event streams, prefix index, encoders, health.

`fleet` is the entry point; `upstream` owns the one HTTP client towards workers. Imports `discovery`.
"""
