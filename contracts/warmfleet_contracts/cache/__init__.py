"""What router and worker agree on about cached KV blocks, and what routers report of them.

Public names: `blocks` (block hashes, cache identity, salts), `resident` (`ResidentSet`), `kv_events` (frames
of the event stream), `contract_versions` (which version of them two processes speak), `worker_api` (paths and
headers under `/internal/`), `prewarm` (prefixes that a router has a worker compute), `handover` (workers that
are about to go, from operator to router), `worker_tokens` (how workers are authenticated), `fleet_totals`
(sums per model and replica, from router to operator), `start_phases` (how long a worker's start took),
`recorded_prefix` (what a recorded decision keeps of a prompt). Imports `errors` and `framing`.
"""
