"""Code that warmfleet's processes share without having to agree on it.

Rooms: `http` (servers), `kubernetes` (API client and informer). Beside them `answers` (of other servers, read
to a bound), `files` (atomic writes), `die_with_parent` and `process_identity` (child processes),
`early_signals`, `home`, `logs`, `memory`, `huge_pages`, `processors` and `version`. A change here changes no
message between two processes; what they must agree on, the framing of their messages included, is in
`warmfleet_contracts`. Imports contracts, and nothing else of ours.
"""
