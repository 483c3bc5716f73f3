"""Attention over the paged KV arena: one protocol, its backends, and the arena itself.

Imports `engine.batch` (what a step computes) and `kv_cache.layout`.
"""
