"""The `warmfleet` command: local fleets, requests to routers, API keys, models, benchmarks, devclusters.

One module per command (`up`, `chat`, `keys`, ...); `__main__.app` registers them. `local` runs a fleet on
this machine, `bench` measures one. The commands share `output`, `errors` and `router_client`.

Imports contracts, `runtime` and the libraries of the worker and the devcluster; starts routers and workers as
processes. Only benchmarks and tests import it.
"""
