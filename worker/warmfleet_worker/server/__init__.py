"""The worker's HTTP server; it holds no model and imports no torch.

`app` lists the routes, `engine_client` speaks to the engine process, `events` serves the cache's event
stream. Imports `engine` (messages, sampling parameters, validation) only.
"""
