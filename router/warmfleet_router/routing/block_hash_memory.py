"""Remembers block hashes of prefixes, so that those of a system prompt or a conversation are computed once.

A key holds the hash before its blocks, and so the tenant's salt: what one tenant has sent makes no request of
another one faster. A run of blocks is remembered when it comes a second time: most parts of prompts never do,
and would only take memory and evict those that do (the doorkeeper of Einziger, Friedman and Manes 2017,
"TinyLFU: A Highly Efficient Cache Admission Policy").
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from warmfleet_contracts.cache.blocks import TOKEN_BYTES, BlockHash, chain_hashes, token_bytes

RUN_TOKENS: Final = 256
"""Tokens whose hashes are remembered together: a look-up takes about as long as hashing one block of 16."""
MAX_RUNS: Final = 4096
"""About a million tokens, and 9 MiB with blocks of 16 tokens; less with larger ones."""
SEEN_RUNS: Final = 32_768
"""Runs that came once, 256 KiB; one more takes the slot of another one."""

_Key = tuple[bytes, bytes, int]


class BlockHashMemory:
    """Block hashes by what they are computed from, with LRU eviction. Not shared between threads.

    memory = BlockHashMemory()
    hashes = memory.hashes(root, token_ids, 16)  # as block_hashes(root, token_ids, 16)
    """

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = max_runs
        self._runs: OrderedDict[_Key, list[BlockHash]] = OrderedDict()
        self._seen = array("q", bytes(8 * SEEN_RUNS))
        """Python's hash of a key, at the slot of its remainder."""

    def hashes(self, root: BlockHash, token_ids: Sequence[int], block_size_tokens: int) -> list[BlockHash]:
        """Hashes of the full blocks of `token_ids`; `root` is that of their chain."""
        full_tokens = len(token_ids) // block_size_tokens * block_size_tokens
        encoded = token_bytes(token_ids[:full_tokens])
        if block_size_tokens > RUN_TOKENS:
            return chain_hashes(root, encoded, block_size_tokens)
        run_bytes = RUN_TOKENS // block_size_tokens * block_size_tokens * TOKEN_BYTES
        hashes: list[BlockHash] = []
        parent = root
        for offset in range(0, len(encoded), run_bytes):
            run = encoded[offset : offset + run_bytes]
            is_whole = len(run) == run_bytes
            key = (parent, run, block_size_tokens)
            of_run = self._runs.get(key) if is_whole else None
            if of_run is not None:
                self._runs.move_to_end(key)
            else:
                of_run = chain_hashes(parent, run, block_size_tokens)
                if is_whole and self._came_before(key):
                    self._remember(key, of_run)
            hashes += of_run
            parent = of_run[-1]
        return hashes

    def _came_before(self, key: _Key) -> bool:
        digest = hash(key)
        slot = digest % SEEN_RUNS
        came_before = self._seen[slot] == digest
        self._seen[slot] = digest
        return came_before

    def _remember(self, key: _Key, hashes: list[BlockHash]) -> None:
        self._runs[key] = hashes
        if len(self._runs) > self._max_runs:
            self._runs.popitem(last=False)
