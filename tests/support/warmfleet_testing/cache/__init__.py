"""Oracles of what caches hold, and `filled_index`.

The oracles are `event_follower`, `infinite_cache`, `miss_oracle` and `prefix_matches`.
"""
