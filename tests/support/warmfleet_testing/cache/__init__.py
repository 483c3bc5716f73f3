"""Oracles of what caches hold (`event_follower`, `miss_oracle`, `prefix_matches`), and `filled_index`."""
