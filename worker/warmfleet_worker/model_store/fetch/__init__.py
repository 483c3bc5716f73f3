"""Fetches a model, from the catalog or a Hugging Face hub, into the folder from which workers load it.

Runs in Jobs and init containers as `python -m warmfleet_worker.fetch`; `command.main` is the entry point.
`warmfleet up` calls `command.fetch` with `settings` of its own and a `progress` that prints, asks
`hub_client.HubClient` for the commit of a branch, finds what is there by `store.ModelStore`, and reports
`errors`.
Imports `model_store` and `model.config`.
"""
