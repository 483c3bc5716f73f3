"""The `warmfleet` command: local fleets, requests to routers, API keys, models, benchmarks, devclusters.

Top to bottom, each may import what follows it: `__main__.app` registers the commands; one module per
command (`up`, `chat`, `keys`, ...), of which others import only `up` and `status`, and the rooms of larger
ones: `bench`, which measures a fleet, `top`, `model` and `doctor`; `autoscaled_deployment`, `router_client`
and `key_file`, which commands share; the room `local`, which runs a fleet on this machine; `svg`, parts of
charts; `output`; `errors`.

Imports contracts, `runtime` and the libraries of the worker and the devcluster; starts routers and workers as
processes. Only benchmarks and tests import it.
"""
