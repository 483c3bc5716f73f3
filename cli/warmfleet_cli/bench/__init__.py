"""`warmfleet bench`: what the prefix-aware router and the KV cache are worth on this machine."""
