"""Model files and model families."""
