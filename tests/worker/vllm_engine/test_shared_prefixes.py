"""Prompts with a common prefix that come at once: its blocks are computed once, and none waits for ever."""

import asyncio

import pytest

from warmfleet_testing.vllm.loop_runs import add, running
from warmfleet_testing.vllm.stand_in import BLOCK_TOKENS
from warmfleet_worker.engine.messages import AbortSequence, ClearCache
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.vllm_engine.shared_prefixes import SharedPrefixes

PREFIX = list(range(3 * BLOCK_TOKENS))


def prompt(number):
    """Three blocks that all have, one of its own, and a token."""
    return [*PREFIX, *range(500 + number, 500 + number + BLOCK_TOKENS), 7]


async def test_blocks_of_prompts_that_come_at_once_are_computed_once():
    async with running() as (engine, server, vllm, _):
        for number in range(5):
            engine.apply(add(prompt(number), number + 1))
        # Without another one at work all that is queued is computed: the prefix once, and the tails.
        assert set(vllm.requests) <= {"1"}
        await server.ended(1, 2, 3, 4, 5)

    cached = [server.updates[number][0].cached_tokens for number in range(1, 6)]
    assert cached == [0, *[len(PREFIX)] * 4]
    assert [server.tokens(number) for number in range(1, 6)] == [[8, 9, 10, 11]] * 5


async def test_queued_tokens_count_a_common_prefix_once():
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add(prompt(0), 1))
        engine.apply(add(prompt(1), 2))
        await server.until(lambda: server.reports and server.load.waiting_sequences == 2)
        assert server.load.queued_uncached_tokens == len(prompt(0)) + len(prompt(1)) - len(PREFIX)
        assert set(vllm.requests) == {"1"}


async def test_the_answers_of_one_request_share_its_prompt():
    async with running() as (engine, server, _, _):
        engine.apply(add(prompt(0), 1, 2, 3, 4))
        await server.ended(1, 2, 3, 4)

    cached = sorted(server.updates[number][0].cached_tokens for number in range(1, 5))
    assert cached == [0, *[4 * BLOCK_TOKENS] * 3]


@pytest.mark.parametrize("change", [AbortSequence(sequence_id=1), ClearCache()], ids=["abort", "clear"])
async def test_what_ends_the_first_one_ends_the_wait_for_it(change):
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add(prompt(0), 1))
        engine.apply(add(prompt(1), 2))
        engine.apply(add(prompt(2), 3))
        await server.until(lambda: "1" in vllm.requests)
        engine.apply(change)
        stepping = asyncio.create_task(vllm.run_steps())
        await server.ended(2, 3)
        stepping.cancel()
    assert server.tokens(2) == server.tokens(3) == [8, 9, 10, 11]


async def test_a_refused_one_ends_the_wait_for_it_too():
    async with running() as (engine, server, vllm, _):
        vllm.refusal = "no"
        engine.apply(add(prompt(0), 1))
        engine.apply(add(prompt(1), 2))
        await server.ended(1, 2)
    assert server.finish(2) == "refused"


async def test_one_that_waits_can_be_aborted():
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add(prompt(0), 1))
        engine.apply(add(prompt(1), 2))
        await server.until(lambda: "1" in vllm.requests)
        engine.apply(AbortSequence(sequence_id=2))

        stepping = asyncio.create_task(vllm.run_steps())
        await server.ended(1)
        stepping.cancel()
        assert server.finish(2) == ""
        assert set(vllm.requests) <= {"1"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"salt": b"another"}),
        ({}, {"may_read_cache": False}),
        ({"is_idle": True}, {}),
        ({"priority": 1}, {"priority": 0}),
    ],
    ids=["another salt", "may not read", "prefix ahead of requests", "lower priority"],
)
async def test_none_waits_for_what_it_cannot_use_or_what_comes_after_it(first, second):
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add(prompt(0), 1, sampling=SamplingParameters(max_output_tokens=4), **first))
        engine.apply(add(prompt(1), 2, **second))
        await server.until(lambda: set(vllm.requests) == {"1", "2"})


def test_blocks_are_forgotten_with_the_prompts_that_compute_them():
    prefixes = SharedPrefixes()
    blocks = [bytes([number]) * 16 for number in range(4)]
    first = prefixes.begin(blocks[:2], priority=0)
    second = prefixes.begin(blocks, priority=0)
    assert prefixes.computing(blocks, priority=0) == 4
    assert prefixes.computing(blocks, priority=-1) == 0
    prefixes.end(first)
    prefixes.end(first)
    assert prefixes.computing(blocks, priority=0) == 0
    assert prefixes.computing(blocks[2:], priority=0) == 2
    prefixes.end(second)
    assert not prefixes._by_block
    assert not prefixes._awaited
