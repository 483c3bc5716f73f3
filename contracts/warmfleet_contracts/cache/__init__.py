"""What router and worker agree on about cached KV blocks.

Public names: `blocks` (block hashes, cache identity, salts), `resident` (`ResidentSet`), `kv_events` (frames
of the event stream), `contract_versions` (which version of them two processes speak), `worker_api` (paths and
headers under `/internal/`), `worker_tokens` (how workers are authenticated). Imports `errors` and `framing`.
"""
