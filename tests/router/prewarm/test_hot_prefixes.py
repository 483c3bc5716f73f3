"""Which beginnings of prompts a router remembers, and which of them come first."""

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.prewarm import MAX_PREFIXES
from warmfleet_router.prewarm.hot_prefixes import HALF_LIFE_SECONDS, HotPrefix, HotPrefixes, PrefixOrigin
from warmfleet_router.prewarm.prewarmer import within_bounds
from warmfleet_router.prewarm.worker_prewarms import MOST_BODY_BYTES

MODEL = "org/model"


def origin(tenant="a", model=MODEL, digest="d"):
    return PrefixOrigin(tenant, f"salt of {tenant}".encode(), model, digest)


def block(number):
    return BlockHash(number.to_bytes(16, "little"))


def tokens(count, first=0):
    return lambda: array("I", range(first, first + count))


def lengths(found):
    return [len(prefix.token_ids) for prefix in found]


def test_prefixes_come_by_how_often_they_were_used_lately():
    hot = HotPrefixes()
    for number, uses in enumerate([1, 5, 3]):
        for _ in range(uses):
            hot.used(block(number), origin(), tokens(16 * (number + 1)), now=0)

    assert lengths(hot.best("d", [MODEL], now=0)) == [32, 48, 16]


def test_a_use_weighs_half_after_the_half_life():
    hot = HotPrefixes()
    for _ in range(4):
        hot.used(block(1), origin(), tokens(16), now=0)
    hot.used(block(2), origin(), tokens(32), now=2.5 * HALF_LIFE_SECONDS)

    [first, second] = hot.best("d", [MODEL], now=2.5 * HALF_LIFE_SECONDS)

    assert (len(first.token_ids), len(second.token_ids)) == (32, 16)
    assert second.uses_at(2 * HALF_LIFE_SECONDS) == pytest.approx(1.0)


def test_a_known_prefix_copies_no_tokens():
    hot = HotPrefixes()
    hot.used(block(1), origin(), tokens(16), now=0)

    def copied():
        raise AssertionError("copied again")

    hot.used(block(1), origin(), copied, now=1)

    assert lengths(hot.best("d", [MODEL], now=1)) == [16]


@pytest.mark.parametrize(("digest", "model"), [("d", "other"), ("other", MODEL)])
def test_only_prefixes_of_the_same_model_and_tokenizer_are_found(digest, model):
    hot = HotPrefixes()
    hot.used(block(1), origin(), tokens(16), now=0)

    assert hot.best(digest, [model], now=0) == []


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from("abc")), max_size=200),
    st.integers(1, 8),
    st.integers(40, 400),
)
def test_neither_their_number_nor_their_bytes_exceed_the_bounds(uses, max_prefixes, max_bytes):
    hot = HotPrefixes(max_prefixes, max_bytes)
    for now, (number, count, tenant) in enumerate(uses):
        hot.used(block(number), origin(tenant), tokens(count), now=now)

        found = hot.best("d", [MODEL], now=now)
        assert len(hot) == len(found) <= max_prefixes
        assert hot.size_bytes == sum(prefix.size_bytes for prefix in found) <= max_bytes


def test_a_tenant_with_many_prefixes_displaces_its_own():
    hot = HotPrefixes(max_prefixes=64, max_bytes=1_000_000)
    for number in range(4):
        hot.used(block(number), origin("quiet"), tokens(100), now=0)
    for number in range(10, 1000):
        for _ in range(3):
            hot.used(block(number), origin("loud"), tokens(100), now=1)

    counts = Counter(prefix.origin.tenant for prefix in hot.best("d", [MODEL], now=1))

    assert counts["quiet"] == 4
    assert counts["loud"] >= 40


def test_a_tenant_with_long_prefixes_displaces_its_own():
    hot = HotPrefixes(max_prefixes=64, max_bytes=400_000)
    hot.used(block(0), origin("quiet"), tokens(1000), now=0)
    for number in range(1, 40):
        for _ in range(3):
            hot.used(block(number), origin("loud"), tokens(20_000), now=1)

    assert 1000 in lengths(hot.best("d", [MODEL], now=1))


def test_one_request_has_a_bounded_number_of_prefixes_and_bytes():
    def hot_prefix(count):
        return HotPrefix(BlockHash(b"h"), origin(), array("I", bytes(4 * count)), 1.0, 0.0)

    many = within_bounds([hot_prefix(1)] * (MAX_PREFIXES + 5), MOST_BODY_BYTES)
    large = within_bounds([hot_prefix(1024 * 1024)] * 6 + [hot_prefix(3)], MOST_BODY_BYTES)

    assert len(many) == MAX_PREFIXES
    assert sum(len(prefix.tokens) for prefix in large) <= MOST_BODY_BYTES
    assert len(large) == 4
