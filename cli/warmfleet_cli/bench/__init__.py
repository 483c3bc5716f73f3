"""`warmfleet bench`: measures prefix-aware routing and the KV cache on this machine.

`app` has the commands, `prefix` and `cache` what each measures. The modules beside them are shared: the fleet
(`fleet`, `processes`), the load (`workload`, `open_loop`, `client`) and the report (`report`, `tables`,
`charts`, `figures`, `machine`). Imports `local`, the worker's libraries, contracts and `runtime`.
"""
