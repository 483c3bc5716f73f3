"""The router's HTTP endpoints: one module per endpoint or per check that stands before it.

`completions` and `tokenize` serve inference, `models`, `health` and `debug` describe the fleet;
`authentication`, `api_keys` and `cors` decide who may call. Top of the router: imports every other room,
and only `app` imports it.
"""
