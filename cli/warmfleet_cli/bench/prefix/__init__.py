"""`warmfleet bench prefix`: routing by cached prefix against other policies.

`benchmark` runs it, `results` holds what was measured and its targets. Imports the modules of
`bench` beside it, never `cache`.
"""
