"""Attention over the paged KV arena (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

`backend` has the protocol, `kv_arena` the memory, `torch_gather` a backend in plain PyTorch, `reference` the
formula that backends are tested against. Imports `engine.batch` (a step's chunks) and `kv_cache.layout`.
"""
