"""Block pool, prefix cache, block tables and the memory layout of a block.

Public: `BlockPool`, `PrefixCache`, `BlockTable`, `KvLayout`. Imports no torch and no other room.
"""
