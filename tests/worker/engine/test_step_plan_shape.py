"""The simulator takes a step's shape from its plan: that of the batch which a runner would get."""

import random
from array import array

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity
from warmfleet_worker.engine.batch import ChunkResult
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import Scheduler, SchedulerSettings
from warmfleet_worker.engine.sequence import Sequence
from warmfleet_worker.engine.sequence_tokens import SequenceTokens
from warmfleet_worker.engine.step_plan import FixedBudget
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.prefix_cache import PrefixCache

BLOCK = 4


def test_a_plan_has_the_shape_of_its_batch() -> None:
    # given prompts of one token and more, some of them cached but for the last token, some without an answer
    draw = random.Random(1)
    pool = BlockPool(200)
    cache = PrefixCache(pool, CacheIdentity(bytes(16)), BLOCK)
    scheduler = Scheduler(pool, cache, SchedulerSettings(max_running_sequences=6))
    root = cache.root(b"")
    shapes = set[StepShape]()
    for number in range(60):
        prompt = array("I", [7]) * draw.choice((1, BLOCK, BLOCK + 1, 3 * BLOCK + 1, 30))
        hashes: list[BlockHash] = []
        cache.extend_hashes(hashes, root, prompt)
        scheduler.add(
            Sequence(
                sequence_id=number,
                token_ids=SequenceTokens(prompt),
                sampling=SamplingParameters(max_output_tokens=draw.choice((0, 1, 5))),
                limit_tokens=100,
                root=root,
                block_hashes=hashes,
                uses_cache=True,
                arrival=number,
                prompt_tokens=len(prompt),
            )
        )

    # when
    while scheduler.has_work:
        plan = scheduler.schedule(FixedBudget(draw.randint(6, 12)))
        shape = plan.shape
        assert shape == StepShape.of(plan.batch)
        shapes.add(shape)
        results = [
            ChunkResult(chunk.sequence_id, finite=True, token_ids=(9,) if chunk.sample else ())
            for chunk in plan.batch.chunks
        ]
        scheduler.apply(plan, results)

    # then
    assert any(shape.prefill_tokens and shape.decode_sequences for shape in shapes)
    assert any(not shape.prefill_tokens for shape in shapes)
