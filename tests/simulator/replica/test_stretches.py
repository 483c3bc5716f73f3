"""Skipping a stretch of quiet steps changes nothing but the time that the simulation takes."""

import asyncio
import random
from array import array
from dataclasses import dataclass
from typing import Any

import pytest

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_contracts.cache.kv_events import Frame, MessageReader
from warmfleet_simulator.clock import run_in_virtual_time
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.step_times import StepTimes

IDENTITY = CacheIdentity(bytes(16))
SCHEDULES = 200


@dataclass(frozen=True)
class Prompt:
    arrival_seconds: float
    token_ids: "array[int]"
    output_tokens: int


@dataclass(frozen=True)
class Schedule:
    settings: ReplicaSettings
    prompts: list[Prompt]


def random_schedule(seed: int) -> Schedule:
    """Few blocks and seats, so that sequences wait, share prefixes, and are preempted."""
    draw = random.Random(seed)
    block_size = draw.choice([1, 4, 8, 32])
    total_blocks = draw.randint(80, 400) // block_size + 12
    settings = ReplicaSettings(
        StepTimes(
            base_ps=draw.randint(1, 4 * 10**10),
            prefill_token_ps=draw.randint(0, 10**9),
            decode_ps=draw.randint(0, 10**9),
            context_token_ps=draw.randint(0, 10**8),
            knee_tokens=draw.choice([0, 0, 64]),
        ),
        block_size_tokens=block_size,
        total_blocks=total_blocks,
        seats=draw.randint(1, 8),
    )
    heads = [array("I", [head]) * draw.randint(1, settings.capacity_tokens // 3) for head in range(3)]
    span_seconds = draw.choice([0.0, 0.5, 5.0, 60.0])
    prompts = []
    for number in range(draw.randint(2, 20)):
        tail = array("I", [100 + number]) * draw.randint(1, settings.capacity_tokens // 4)
        prompt = draw.choice(heads) + tail
        prompts.append(Prompt(draw.random() * span_seconds, prompt, draw.randint(1, 150)))
    return Schedule(settings, sorted(prompts, key=lambda prompt: prompt.arrival_seconds))


async def run(schedule: Schedule, *, skips: bool) -> dict[str, Any]:
    """Everything that is visible of a replica: answers with their times, and the frames of its stream."""
    loop = asyncio.get_running_loop()
    replica = Replica("r", "e", IDENTITY, schedule.settings, skips_quiet_steps=skips)
    frames: list[tuple[Any, ...]] = []

    async def follow() -> None:
        reader = MessageReader()
        async for data in replica.events("", 0):
            for frame in reader.feed(data):
                assert isinstance(frame, Frame)
                assert frame.load is not None
                load = frame.load
                counts = (load.running_sequences, load.waiting_sequences, load.pinned_blocks)
                dispatches = (load.admitted_dispatches, load.open_dispatches)
                counted = {"router": sum(counts[:2])} if sum(counts[:2]) else {}
                assert (load.open_dispatches or {}) == counted  # absent before the first report
                queued = (load.queued_uncached_tokens, load.cached_blocks, dispatches)
                changes = (sorted(frame.stored), sorted(frame.removed), frame.digest)
                frames.append((loop.time(), frame.seq, changes, counts, queued))

    async def ask(number: int, prompt: Prompt) -> tuple[Any, ...]:
        await asyncio.sleep(prompt.arrival_seconds)
        answer = replica.submit(
            prompt.token_ids,
            output_tokens=prompt.output_tokens,
            answer_token=1000 + number,
            router_id="router",
            dispatch=number + 1,
        )
        cached = (await answer.admitted, loop.time())
        await answer.first_token
        first = loop.time()
        return cached, first, await answer.ended, loop.time(), answer.last_token_ps

    follower = asyncio.create_task(follow())
    answers = await asyncio.gather(*(ask(*item) for item in enumerate(schedule.prompts)))
    await asyncio.sleep(1)
    replica.close()
    await follower
    return {
        "answers": answers,
        "frames": frames,
        "gaps": replica.gaps.counts,
        "steps": replica.steps,
        "evicted": replica.evicted_blocks,
    }


@pytest.mark.parametrize("decade", range(SCHEDULES // 10))
def test_skipping_equals_stepping_on_random_schedules(decade: int) -> None:
    for seed in range(10 * decade, 10 * decade + 10):
        schedule = random_schedule(seed)

        skipped = run_in_virtual_time(run(schedule, skips=True))
        stepped = run_in_virtual_time(run(schedule, skips=False))

        for part, expected in stepped.items():
            assert skipped[part] == expected, (seed, part)


def test_the_schedules_preempt_evict_wait_and_hit() -> None:
    evicted = hits = waits = 0
    for seed in range(SCHEDULES):
        result = run_in_virtual_time(run(random_schedule(seed), skips=True))
        evicted += result["evicted"] > 0
        hits += any(cached for (cached, _), *_ in result["answers"])
        waits += any(counts[1] for *_, counts, _ in result["frames"])

    assert min(evicted, hits, waits) > SCHEDULES / 4


def counted_steps(output_tokens: int) -> tuple[int, int]:
    """Steps of an answer, and how many of them the engine does one by one."""
    settings = ReplicaSettings(StepTimes(10**9, 10**6, 0, 0), block_size_tokens=512, total_blocks=64)
    prompt = array("I", [1]) * 700

    async def count() -> tuple[int, int]:
        replica = Replica("r", "e", IDENTITY, settings)
        engine_steps = 0
        step = replica._engine.step

        def counted() -> Any:
            nonlocal engine_steps
            engine_steps += 1
            return step()

        replica._engine.step = counted  # type: ignore[method-assign]
        answer = replica.submit(
            prompt, output_tokens=output_tokens, answer_token=2, router_id="r", dispatch=1
        )
        await answer.ended
        return replica.steps, engine_steps

    return run_in_virtual_time(count())


def test_a_long_answer_takes_few_events() -> None:
    """Each block of 512 tokens takes one step at either edge, and stretches of at most a second."""
    steps, engine_steps = counted_steps(output_tokens=10_000)

    assert steps == 10_000
    assert engine_steps < 100


def test_a_lone_answer_within_a_block_takes_the_step_of_its_prefill_and_that_of_its_end() -> None:
    assert counted_steps(output_tokens=200) == (200, 2)
