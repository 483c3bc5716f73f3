"""Thousands of distinct requests leave nothing behind: not in the blocks, and not in memory.

The whole soak, ten thousand requests with its figures, is `make soak`; here its first part runs.
"""

import asyncio
from pathlib import Path

from warmfleet_testing.processes.soak import LAP_REQUESTS, Soak, soaked_fleet

LAPS = 3
NOISE_BYTES = 3 * 1024 * 1024 // 2
"""Of the last thousand requests: what is bounded but not full yet (remembered segments, block hashes, ended
decisions) and what an allocator keeps. A leak of two kilobytes per request is found."""


def test_thousands_of_requests_leave_no_block_and_little_memory(tmp_path: Path) -> None:
    with soaked_fleet(tmp_path) as fleet:
        start = fleet.worker.cache()
        soak = Soak(fleet)

        points = asyncio.run(soak.run(LAPS))

        answers = soak.answers
        assert sum(answers.values()) == LAPS * LAP_REQUESTS
        assert answers["cancelled"] > 0.07 * LAPS * LAP_REQUESTS
        assert answers["invalid"] > 0.03 * LAPS * LAP_REQUESTS
        for process in ("router", "worker", "engine"):
            growth = points[-1].resident_bytes[process] - points[-2].resident_bytes[process]
            assert growth < NOISE_BYTES, (process, points)
        fleet.clear_cache()
        assert {**fleet.worker.cache(), "seq": start["seq"]} == start
