"""What router and worker agree on about cached KV blocks.

Block hashes and identities (`blocks`), the resident set (`resident`), the event stream's frames
(`kv_events`), headers of a dispatch (`worker_api`) and the tokens that authenticate it (`worker_tokens`).
Imports `errors` only.
"""
