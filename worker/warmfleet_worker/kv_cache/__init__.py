"""Block pool, prefix cache, block tables and the memory layout of a block.

Public: `block_pool.BlockPool`, `prefix_cache.PrefixCache`, `block_table.BlockTable`, `layout.KvLayout`.
Imports no torch and no other room.
"""
