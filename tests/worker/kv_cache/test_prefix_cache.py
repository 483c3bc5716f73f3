"""Cached prefixes against brute force, and which sequence computes which block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.prefix_cache import NO_HIT, PrefixCache

IDENTITY = CacheIdentity(b"identity-of-test")
BLOCK_SIZE_TOKENS = 4
ROOT = block_root(IDENTITY)


@pytest.fixture
def pool():
    return BlockPool(64)


@pytest.fixture
def cache(pool):
    return PrefixCache(pool, IDENTITY, BLOCK_SIZE_TOKENS)


def hashes_of(cache, tokens, salt=b""):
    hashes = []
    cache.extend_hashes(hashes, cache.root(salt), tokens)
    return hashes


def remember(pool, hashes):
    """Commit blocks with these hashes and release them."""
    blocks = zip(pool.allocate(len(hashes)), hashes, strict=True)
    pool.release([pool.commit(block, block_hash, ROOT) for block, block_hash in blocks])


def test_the_hashes_are_those_of_the_contract_with_identity_and_salt(cache):
    tokens = list(range(11))

    assert hashes_of(cache, tokens, b"salt") == block_hashes(block_root(IDENTITY, salt=b"salt"), tokens, 4)


def test_hashes_grow_with_the_tokens_as_if_made_at_once(cache):
    tokens = list(range(23))
    hashes = []

    for end in range(len(tokens) + 1):
        cache.extend_hashes(hashes, cache.root(b""), tokens[:end])

    assert hashes == hashes_of(cache, tokens)


@pytest.mark.parametrize(("tokens", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_prompt_seen_before_hits_full_blocks_and_never_its_last_token(pool, cache, tokens, cached):
    prompt = list(range(tokens))
    remember(pool, hashes_of(cache, prompt))

    hit = cache.match(hashes_of(cache, prompt), len(prompt))

    assert hit.cached_tokens == cached
    assert len(hit.blocks) == cached // BLOCK_SIZE_TOKENS
    assert hit.evictable_blocks == len(hit.blocks)


def test_a_hit_ends_at_the_first_missing_block(pool, cache):
    hashes = hashes_of(cache, list(range(20)))
    remember(pool, [hashes[0], hashes[2], hashes[3]])

    assert cache.match(hashes, 20).cached_tokens == 4
    assert cache.match(hashes[1:], 16) == NO_HIT


def test_other_salts_share_nothing(pool, cache):
    tokens = list(range(20))
    remember(pool, hashes_of(cache, tokens, b"one"))

    assert cache.match(hashes_of(cache, tokens, b"two"), 20) == NO_HIT
    assert cache.match(hashes_of(cache, tokens, b"one"), 20).cached_tokens == 16


def test_a_hit_with_a_holder_takes_nothing_from_the_available_blocks(pool, cache):
    hashes = hashes_of(cache, list(range(12)))
    remember(pool, hashes)
    pool.pin([pool.find(hashes[0])])

    assert cache.match(hashes, 13).evictable_blocks == 2


prompts = st.lists(st.integers(0, 1), max_size=20)


@given(st.lists(prompts, max_size=6), prompts)
def test_the_hit_is_the_longest_full_block_prefix_of_anything_seen(earlier, prompt):
    pool = BlockPool(64)
    cache = PrefixCache(pool, IDENTITY, BLOCK_SIZE_TOKENS)
    for tokens in earlier:
        remember(pool, hashes_of(cache, tokens))

    hit = cache.match(hashes_of(cache, prompt), len(prompt))

    seen = {tuple(tokens[:end]) for tokens in earlier for end in range(4, len(tokens) + 1, 4)}
    possible = [n for n in range(0, len(prompt), 4) if n == 0 or tuple(prompt[:n]) in seen]
    assert hit.cached_tokens == max(possible, default=0)


def test_the_first_to_compute_a_block_leads_until_it_stops(cache):
    hashes = hashes_of(cache, list(range(8)))
    cache.lead(1, hashes)
    cache.lead(2, hashes)
    assert cache.leader_of(hashes[0]) == 1

    cache.stop_leading(2, hashes)
    assert cache.leader_of(hashes[0]) == 1
    cache.stop_leading(1, hashes)

    assert cache.leader_of(hashes[0]) is None
    assert cache.led_blocks == 0
