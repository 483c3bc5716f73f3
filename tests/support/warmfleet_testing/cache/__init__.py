"""Oracles of what caches hold, `filled_index`, and what a stub worker has: `stub_cache`, `stub_events`.

The oracles are `event_follower`, `infinite_cache`, `miss_oracle` and `prefix_matches`.
"""
