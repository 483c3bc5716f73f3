"""The KV cache of a stub worker: which blocks it holds, and which are being computed. Without memory."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, block_hashes, block_root

STUB_BLOCK_TOKENS = 16
STUB_IDENTITY = CacheIdentity(b"stub-identity-16")


class StubCache:
    """Blocks by their hashes; a request that needs one which is being computed waits for it."""

    def __init__(self) -> None:
        self.resident: set[BlockHash] = set()
        self.seq = 0
        self._computing: dict[BlockHash, asyncio.Future[None]] = {}

    def hashes(self, tokens: Sequence[int], salt: bytes) -> list[BlockHash]:
        """Those of a prompt's full blocks."""
        return block_hashes(block_root(STUB_IDENTITY, salt=salt), list(tokens), STUB_BLOCK_TOKENS)

    async def held(self, hashes: Iterable[BlockHash]) -> int:
        """How many of a prompt's blocks are held without a break, once those in the making are computed."""
        blocks = 0
        for block_hash in hashes:
            if block_hash in self._computing:
                await asyncio.shield(self._computing[block_hash])
            if block_hash not in self.resident:
                break
            blocks += 1
        return blocks

    def missing(self, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        """Those that are not held."""
        return [block_hash for block_hash in hashes if block_hash not in self.resident]

    def begin(self, hashes: Iterable[BlockHash]) -> None:
        """These are being computed from now on."""
        for block_hash in hashes:
            self._computing[block_hash] = asyncio.get_running_loop().create_future()

    def end(self, hashes: Iterable[BlockHash]) -> None:
        """They are computed, or given up: requests that wait for them look again."""
        for block_hash in hashes:
            if (computing := self._computing.pop(block_hash, None)) is not None:
                computing.set_result(None)

    def change(self, stored: Collection[BlockHash], removed: Collection[BlockHash]) -> None:
        """Hold some more and some less."""
        if stored or removed:
            self.seq += 1
        self.resident |= set(stored)
        self.resident -= set(removed)
