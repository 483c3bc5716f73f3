"""What one step costs on the host must not grow with the length of the context."""

import time
from array import array

import numpy as np
import pytest

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_worker.engine.batch import ChunkResult
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import Scheduler, SchedulerSettings
from warmfleet_worker.engine.sequence import Sequence
from warmfleet_worker.engine.sequence_tokens import SequenceTokens
from warmfleet_worker.engine.step_plan import FixedBudget
from warmfleet_worker.engine.token_counts import TokenCounts
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.prefix_cache import PrefixCache
from warmfleet_worker.runner.penalties import adjusted

BLOCK = 16
STEP_SECONDS = 0.100
"""The step that the automatic token budget aims at."""


def scheduler_of(total_blocks):
    pool = BlockPool(total_blocks)
    cache = PrefixCache(pool, CacheIdentity(b"identity-of-test"), BLOCK)
    return Scheduler(pool, cache, SchedulerSettings(max_model_length_tokens=2**20)), cache


def sequences_of_one_prompt(cache, count, prompt_tokens, **sampling):
    """Sequences that share a prompt, without hashing it once for each."""
    prompt = [index % 50 for index in range(prompt_tokens)]
    root = cache.root(b"")
    hashes: list[bytes] = []
    cache.extend_hashes(hashes, root, prompt)
    parameters = SamplingParameters(temperature=0.0, max_output_tokens=100, **sampling)
    return [
        Sequence(
            sequence_id=number,
            token_ids=SequenceTokens(array("I", prompt)),
            sampling=parameters,
            limit_tokens=2**20,
            root=root,
            block_hashes=list(hashes),
            uses_cache=True,
            arrival=number,
            prompt_tokens=prompt_tokens,
            token_counts=TokenCounts(prompt) if parameters.has_penalty else None,
        )
        for number in range(count)
    ]


def compute(scheduler, plan, token_id=7):
    scheduler.apply(
        plan,
        [
            ChunkResult(chunk.sequence_id, finite=True, token_ids=() if chunk.sample is None else (token_id,))
            for chunk in plan.batch.chunks
        ],
    )


def host_seconds(scheduler, steps):
    """Processor time of each of `steps` steps of 2,048 tokens without a model."""
    seconds = []
    for _ in range(steps):
        started = time.process_time()
        compute(scheduler, scheduler.schedule(FixedBudget(2048)))
        seconds.append(time.process_time() - started)
    return seconds


def test_followers_of_one_long_document_cost_a_hundredth_of_a_step():
    # given a leader that computes a document of 131,072 tokens, and 63 followers
    document_tokens = 131_072
    scheduler, cache = scheduler_of(2 * document_tokens // BLOCK)
    leader, *followers = sequences_of_one_prompt(cache, 64, document_tokens)
    scheduler.add(leader)
    alone = host_seconds(scheduler, 20)
    for follower in followers:
        scheduler.add(follower)

    # when the leader computes on
    together = host_seconds(scheduler, 20)

    # then
    assert len(scheduler.waiting) == 63
    assert min(together) - min(alone) <= STEP_SECONDS / 100
    # and each follower computes only its last block
    first_chunks = {}
    while scheduler.waiting:
        plan = scheduler.schedule(FixedBudget(2048))
        for chunk in plan.batch.chunks:
            first_chunks.setdefault(chunk.sequence_id, len(chunk.token_ids))
        compute(scheduler, plan)
    assert [first_chunks[follower.sequence_id] for follower in followers] == [BLOCK] * 63


@pytest.mark.parametrize("sampling", [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}])
def test_penalties_of_a_long_context_cost_as_much_as_those_of_a_short_one(sampling):
    def token_seconds(context_tokens):
        scheduler, cache = scheduler_of(context_tokens // BLOCK + 10)
        (sequence,) = sequences_of_one_prompt(cache, 1, context_tokens, **sampling)
        scheduler.add(sequence)
        while not sequence.output_tokens:
            compute(scheduler, scheduler.schedule(FixedBudget(2**20)))
        logits = np.zeros((1, 64), np.float32)
        seconds = []
        for _ in range(40):
            started = time.process_time()
            plan = scheduler.schedule(FixedBudget(2048))
            adjusted(logits, [chunk.sample for chunk in plan.batch.chunks])
            seconds.append(time.process_time() - started)
            compute(scheduler, plan)
        return min(seconds)

    assert token_seconds(100_000) <= 4 * token_seconds(1_000)
