"""Forwards one queued request to the worker that admission assigns, and streams the answer back.

`proxy.Proxy` retries, and stops when the client disconnects; `exchange.Exchanges` makes one attempt at one
worker, whose stream `event_relay` passes on; `text_proxy.TextProxy` has texts tokenized. Public besides:
`cache_comparison`, `headers` and `upstream_request`, which make what is forwarded, `retry_budget`, and
`crash_suspects`, which refuses requests that end engines.
May import `admission` and the rooms below it; only `api`, `settings`, `rooms` and `app` import it.
"""
