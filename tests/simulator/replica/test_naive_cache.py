"""A replica finds in its cache what a list of blocks in the order of their last use holds."""

import random
from array import array
from collections import OrderedDict

import pytest

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_simulator.clock import run_in_virtual_time
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.step_times import StepTimes

BLOCK = 16
CAPACITY_BLOCKS = 60


def naive_cached_tokens(prompts: list[tuple["array[int]", int]]) -> list[int]:
    """Least recently used blocks out first; the tail of a prompt counts as used before its head."""
    kept: OrderedDict[bytes, None] = OrderedDict()
    cached = []
    for number, (prompt, output_tokens) in enumerate(prompts):
        # The last token is never computed: it is no part of a block.
        tokens = prompt + array("I", [10_000 + number]) * (output_tokens - 1)
        blocks = [tokens[:end].tobytes() for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        held = 0
        while held < (len(prompt) - 1) // BLOCK and blocks[held] in kept:
            held += 1
        cached.append(held * BLOCK)
        for block in reversed(blocks):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > CAPACITY_BLOCKS - (len(tokens) % BLOCK > 0):
            kept.popitem(last=False)
    return cached


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_that_answers_one_prompt_at_a_time_is_a_naive_cache(seed: int) -> None:
    draw = random.Random(seed)
    heads = [array("I", [head]) * draw.randint(1, 300) for head in range(8)]
    prompts = [
        (draw.choice(heads) + array("I", [100 + number]) * draw.randint(1, 120), draw.randint(1, 80))
        for number in range(300)
    ]

    async def run() -> list[int]:
        settings = ReplicaSettings(StepTimes(10**9, 10**6, 0, 0), BLOCK, CAPACITY_BLOCKS)
        replica = Replica("r", "e", CacheIdentity(bytes(16)), settings)
        cached = []
        for number, (prompt, output_tokens) in enumerate(prompts):
            answer = replica.submit(
                prompt,
                output_tokens=output_tokens,
                answer_token=10_000 + number,
                router_id="r",
                dispatch=number + 1,
            )
            await answer.ended
            cached.append(answer.admitted.result())
        return cached

    cached, naive = run_in_virtual_time(run()), naive_cached_tokens(prompts)
    tokens = sum(len(prompt) for prompt, _ in prompts)
    assert abs(sum(cached) - sum(naive)) / tokens < 0.001
    assert sum(naive) > tokens / 10
