"""Block pool, prefix cache and block tables. Imports no torch."""
