"""`warmfleet bench`: measures prefix-aware routing and the KV cache on this machine.

`app` has the commands, `prefix` and `cache` what these measure, `load` the load on a fleet that runs. The
modules beside them are shared: the fleet (`fleet`, `variants`, `processes`), the load of the others
(`workload`, `open_loop`, `client`), `observer`, and the report (`report`, `tables`, `charts`, `figures`,
`machine`). Imports `local`, `output`, `router_client` and `errors` of the CLI, the worker's libraries,
contracts and `runtime`.
"""
