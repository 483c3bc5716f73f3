"""Fetches a model into the folder where a worker will look for it; run as `python -m warmfleet_worker.fetch`."""
