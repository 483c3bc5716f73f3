"""How much larger a cache had to be, against caches that are that much larger."""

import random
from collections import OrderedDict

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.fleet_totals import MissTokens, within_depth
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_router.economics.ghost_list import GhostList
from warmfleet_router.economics.misses import PromptHolders, missed_tokens, prompt_causes
from warmfleet_router.economics.model_counts import ModelCount

BLOCK = 16
CACHE_BLOCKS = 200


def hits_of(cache_blocks: int, requests: list[BlockHash]) -> int:
    """Of a cache that evicts what was used longest ago."""
    cache: OrderedDict[BlockHash, None] = OrderedDict()
    hits = 0
    for block in requests:
        hits += block in cache
        cache[block] = None
        cache.move_to_end(block)
        if len(cache) > cache_blocks:
            cache.popitem(last=False)
    return hits


def test_misses_within_a_depth_are_the_hits_of_a_cache_that_much_larger() -> None:
    draw = random.Random(7)
    requests = [
        BlockHash(int(draw.paretovariate(0.6) % 3000).to_bytes(2, "little") * 8) for _ in range(20_000)
    ]
    ghosts, count, cache = GhostList(), ModelCount(), OrderedDict[BlockHash, None]()
    for block in requests:
        cached_tokens = BLOCK if block in cache else 0
        holders = PromptHolders([block], BLOCK, cached_tokens // BLOCK, 0, cache_blocks=CACHE_BLOCKS)
        causes = prompt_causes(
            holders, ghosts.cause_of_loss, ghosts.evicted_since, predicted_cached_tokens=cached_tokens
        )
        misses = missed_tokens(
            [causes], first_cached_tokens=cached_tokens, prompt_tokens=BLOCK, cached_tokens=cached_tokens
        )
        count.answered(BLOCK, cached_tokens, misses)
        stored = [] if block in cache else [block]
        cache[block] = None
        cache.move_to_end(block)
        removed = [cache.popitem(last=False)[0]] if len(cache) > CACHE_BLOCKS else []
        ghosts.frame_arrived("w", Frame(epoch="e", seq=1, stored=list(stored), removed=list(removed)))

    hits = hits_of(CACHE_BLOCKS, requests)
    for depth in (0.25, 0.5, 1.0, 2.0):
        spared = hits_of(round((1 + depth) * CACHE_BLOCKS), requests) - hits
        # What was evicted twice since counts twice: depths err upwards.
        assert 0.7 * spared <= within_depth(count.misses.capacity_depths, depth) / BLOCK <= 1.05 * spared


def test_a_depth_between_two_bounds_is_interpolated() -> None:
    misses = MissTokens(capacity=100, capacity_depths=(0, 0, 0, 40, 20))

    assert within_depth(misses.capacity_depths, 1 / 16) == 0
    assert within_depth(misses.capacity_depths, 3 / 32) == 20
    assert within_depth(misses.capacity_depths, 1 / 8) == 40
    assert within_depth(misses.capacity_depths, 2) == 60
    assert within_depth((), 2) == 0
