"""`warmfleet bench cache`: generation, time to first token and memory with a KV cache and without one.

`benchmark` runs it, `results` holds what was measured and its targets. Imports the modules of
`bench` beside it, never `prefix`.
"""
