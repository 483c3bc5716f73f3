"""A replica: the production scheduler, block pool, prefix cache and event stream over modelled step times.

Public: `replica` (`Replica`), `answer` (`Answer`), `settings` (`ReplicaSettings`), `engine`
(`SimulatedEngine`) and `token_gaps` (`TokenGaps`). Imports `warmfleet_worker` (engine, KV cache, event hub),
nothing of the router.
"""
