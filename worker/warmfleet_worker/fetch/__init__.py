"""`python -m warmfleet_worker.fetch`: brings a model to where a worker will look for it."""
