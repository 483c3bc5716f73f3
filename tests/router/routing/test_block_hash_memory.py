"""Remembered block hashes: the same as computed ones, computed once, bounded, and each tenant for itself."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import (
    TOKEN_BYTES,
    BlockHash,
    CacheIdentity,
    block_hashes,
    block_root,
    chain_hashes,
)
from warmfleet_router.routing import block_hash_memory
from warmfleet_router.routing.block_hash_memory import RUN_TOKENS, BlockHashMemory

BLOCK = 16
RUN = RUN_TOKENS
SYSTEM = list(range(5 * RUN))


def root(salt: bytes = b"tenant") -> BlockHash:
    return block_root(CacheIdentity(b"identity-of-16by"), salt=salt)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks were hashed, call by call."""
    counts: list[int] = []

    def counted(parent: BlockHash, tokens: bytes, block_size_tokens: int) -> list[BlockHash]:
        hashes = chain_hashes(parent, tokens, block_size_tokens)
        counts.append(len(hashes))
        return hashes

    monkeypatch.setattr(block_hash_memory, "chain_hashes", counted)
    return counts


@given(
    prompts=st.lists(
        st.tuples(st.sampled_from([0, 5, RUN, 2 * RUN, 3 * RUN + 7]), st.lists(st.integers(0, 2**32 - 1))),
        max_size=8,
    ),
    block_size=st.sampled_from([1, 8, BLOCK, 96, 300]),
    max_runs=st.sampled_from([1, 2, 1000]),
)
def test_hashes_are_those_of_the_contract_with_a_memory_of_any_size(
    prompts: Sequence[tuple[int, list[int]]], block_size: int, max_runs: int
) -> None:
    memory = BlockHashMemory(max_runs)

    for shared, own in prompts:
        token_ids = [*SYSTEM[:shared], *own]
        assert memory.hashes(root(), token_ids, block_size) == block_hashes(root(), token_ids, block_size)
        assert len(memory._runs) <= max_runs


def test_a_prefix_that_came_twice_is_hashed_no_more(computed: list[int]) -> None:
    memory = BlockHashMemory()
    for last in (1, 2):
        memory.hashes(root(), [*SYSTEM, *[last] * 40], BLOCK)
    computed.clear()

    memory.hashes(root(), [*SYSTEM, *[3] * 40], BLOCK)

    assert computed == [2]


def test_what_comes_once_takes_no_memory() -> None:
    memory = BlockHashMemory()

    for number in range(100):
        memory.hashes(root(), [number] * 3 * RUN, BLOCK)

    assert len(memory._runs) == 0


def test_a_prefix_that_another_tenant_has_sent_is_hashed_again(computed: list[int]) -> None:
    memory = BlockHashMemory()
    for _ in range(2):
        memory.hashes(root(b"one"), SYSTEM, BLOCK)
    computed.clear()

    memory.hashes(root(b"another"), SYSTEM, BLOCK)

    assert sum(computed) == len(SYSTEM) // BLOCK


def test_what_was_not_used_for_longest_goes_first(computed: list[int]) -> None:
    memory = BlockHashMemory(max_runs=2)
    first, second, third = ([number] * RUN for number in range(3))
    for token_ids in (first, first, second, second, first, third, third):
        memory.hashes(root(), token_ids, BLOCK)
    computed.clear()

    memory.hashes(root(), first, BLOCK)
    assert computed == []
    memory.hashes(root(), second, BLOCK)
    assert computed == [RUN // BLOCK]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 512])
def test_large_blocks_take_no_more_memory_than_small_ones(block_size: int) -> None:
    memory = BlockHashMemory()
    for _ in range(2):
        memory.hashes(root(), list(range(4096)), block_size)

    assert {len(run) for _, run, _ in memory._runs} <= {RUN_TOKENS * TOKEN_BYTES}
