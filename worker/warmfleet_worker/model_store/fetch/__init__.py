"""Fetches a model into the folder where a worker will look for it.

Run as `python -m warmfleet_worker.fetch`; `command` is the entry point.
"""
