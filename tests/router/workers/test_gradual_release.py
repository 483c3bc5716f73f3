"""Large sets are freed in parts, and requests are served in between."""

import asyncio
import hashlib

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.resident import PARTS, ResidentSet
from warmfleet_router.workers.gradual_release import GradualRelease


def resident_set(blocks: int) -> ResidentSet:
    digests = (hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in range(blocks))
    return ResidentSet("epoch", 1, map(BlockHash, digests))


async def test_the_event_loop_runs_between_the_parts_of_a_dropped_set() -> None:
    release = GradualRelease()
    iterations = 0

    release(resident_set(1000))
    release(resident_set(1000))
    while release.pending:
        await asyncio.sleep(0)
        iterations += 1

    assert iterations >= 2 * PARTS


async def test_a_set_that_is_dropped_later_is_freed_too() -> None:
    release = GradualRelease()
    release(resident_set(10))
    for _ in range(PARTS + 1):
        await asyncio.sleep(0)

    release(resident_set(10))
    for _ in range(PARTS + 1):
        await asyncio.sleep(0)

    assert release.pending == 0
