"""Fetches a model, from the catalog or a Hugging Face hub, into the folder from which workers load it.

Runs in Jobs and init containers as `python -m warmfleet_worker.fetch`; `command.main` is the entry point.
Imports `model_store` and `model.config`.
"""
