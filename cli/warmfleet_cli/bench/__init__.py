"""`warmfleet bench`: measures prefix-aware routing and the KV cache on this machine.

`app` has the commands, `prefix` and `cache` what each measures. The modules beside them are shared: the fleet
(`fleet`, `variants`, `processes`), the load (`workload`, `open_loop`, `client`), `observer`, and the report
(`report`, `tables`, `charts`, `figures`, `machine`). Imports `local`, `output` and `errors` of the CLI, the
worker's libraries, contracts and `runtime`.
"""
