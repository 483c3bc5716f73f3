"""How many prompt tokens a perfect cache would have served: the reference for every policy."""

from collections.abc import Iterable, Sequence

from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root, cacheable_tokens


class InfiniteCache:
    """One cache without eviction that every request reads and fills when it arrives."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._root = block_root(CacheIdentity(bytes(16)))
        self._held: set[bytes] = set()

    def arrive(self, token_ids: Sequence[int]) -> int:
        """Tokens of this prompt that the cache holds already (full blocks, never the last token)."""
        hashes = block_hashes(self._root, token_ids, self._block_size_tokens)
        usable = cacheable_tokens(len(token_ids), self._block_size_tokens) // self._block_size_tokens
        hit = 0
        while hit < usable and hashes[hit] in self._held:
            hit += 1
        self._held.update(hashes)
        return hit * self._block_size_tokens


def reusable_tokens(prompts: Iterable[Sequence[int]], block_size_tokens: int) -> list[int]:
    """Per prompt, in order of arrival, what `InfiniteCache` would have served of it, in tokens."""
    cache = InfiniteCache(block_size_tokens)
    return [cache.arrive(prompt) for prompt in prompts]
