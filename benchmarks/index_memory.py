"""How much memory does the prefix index take, and how long does it take to fill it?

Without sockets. Bytes are differences of the process's memory: blocks of one holder each; the same while each
is removed and another one stored; blocks that further workers hold as well. Then a router's restart: ten
workers of 100,000 blocks are connected, and each of their blocks is looked for.

    python benchmarks/index_memory.py [--workers 10 1000] [--blocks 2000000]     # about three minutes
"""

import argparse
import asyncio
import gc
import hashlib
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import uvloop
from harness.memory_workers import MemorySource, digest_of, hello, report, snapshot
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import SNAPSHOT_CHUNK_HASHES, Frame, ResidentDigest
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_runtime.memory import own_memory_bytes, return_freed_memory

BLOCK_BYTES: Final = 130.0
FURTHER_HOLDER_BYTES: Final = 16.0
RESTART_SECONDS: Final = 2.0
SLICE_MS: Final = 5.0
RESTARTED_WORKERS: Final = 10
CHANGED_BLOCKS: Final = 100
"""Removed and stored in one frame."""
FURTHER_HOLDERS: Final = 4
RUN_BLOCKS: Final = 20
"""Neighbours in a conversation, which the same workers hold."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one fleet; bytes per block."""

    workers: int
    blocks: int
    per_block: float
    """With one holder each."""
    per_block_after_churn: float
    """The most while every block is removed and another one stored."""
    per_further_holder: list[float]
    """With one further holder of each block, with two, and so on."""
    longest_slice_ms: float
    """Processor time, while all further holders are swept."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Of one router."""

    seconds: float
    """From the first connection until all workers are precise."""
    differing: int
    """Blocks that the index attributes to a worker that does not hold them, or the other way round."""


class FilledIndex:
    """An index without streams: what workers store and remove is applied as frames."""

    def __init__(self) -> None:
        self.index = PrefixIndex(1 << 40, on_dropped=lambda: None)
        self._positions: dict[str, tuple[int, int, int]] = {}
        """Per worker: position, count and exclusive-or."""

    def store(self, uid: str, hashes: Sequence[BlockHash]) -> None:
        """A worker that is new holds `hashes`."""
        self.index.connected(uid, "e")
        digest = digest_of(hashes)
        self._positions[uid] = (1, digest.count, int.from_bytes(digest.xor, "little"))
        starts = range(0, len(hashes), SNAPSHOT_CHUNK_HASHES)
        for number, start in enumerate(starts):
            chunk = list(hashes[start : start + SNAPSHOT_CHUNK_HASHES])
            left = len(starts) - 1 - number
            self.index.apply(uid, Frame(epoch="e", seq=1, stored=chunk, snapshot_left=left, digest=digest))

    def replace(self, uid: str, removed: Sequence[BlockHash], stored: Sequence[BlockHash]) -> None:
        """A worker evicted some blocks and stored others."""
        seq, count, xor = self._positions[uid]
        for block_hash in (*removed, *stored):
            xor ^= int.from_bytes(block_hash, "little")
        seq, count = seq + 1, count + len(stored) - len(removed)
        self._positions[uid] = (seq, count, xor)
        digest = ResidentDigest(count, xor.to_bytes(16, "little"))
        frame = Frame(epoch="e", seq=seq, stored=list(stored), removed=list(removed), digest=digest)
        self.index.apply(uid, frame)


def blocks_from(first: int, count: int) -> list[BlockHash]:
    """Blocks by number, as new objects at each call: nothing but the index keeps them."""
    numbers = range(first, first + count)
    return [BlockHash(hashlib.blake2b(number.to_bytes(8), digest_size=16).digest()) for number in numbers]


def memory(workers: int, blocks: int) -> Memory:
    """Fill an index with `blocks`, evenly shared out, replace all of them, and let others hold them too."""
    return_freed_memory()
    filled, each = FilledIndex(), blocks // workers
    start = own_memory_bytes()
    for worker in range(workers):
        filled.store(f"w{worker}", blocks_from(worker * each, each))
    gc.collect()
    one_holder = (own_memory_bytes() - start) / blocks
    after_churn = 0.0
    for worker in range(workers):
        for first in range(worker * each, (worker + 1) * each, CHANGED_BLOCKS):
            count = min(CHANGED_BLOCKS, (worker + 1) * each - first)
            filled.replace(f"w{worker}", blocks_from(first, count), blocks_from(blocks + first, count))
        after_churn = max(after_churn, (own_memory_bytes() - start) / blocks)
    gc.collect()
    before, further, draw = own_memory_bytes(), [], random.Random(1)
    for copy in range(FURTHER_HOLDERS):
        runs: list[list[int]] = [[] for _ in range(workers)]
        for first in range(blocks, 2 * blocks, RUN_BLOCKS):
            runs[draw.randrange(workers)].append(first)
        for worker, held in enumerate(runs):
            hashes = [block for first in held for block in blocks_from(first, RUN_BLOCKS)]
            filled.store(f"x{worker}-{copy}", hashes)
        gc.collect()
        further.append((own_memory_bytes() - before) / (blocks * (copy + 1)))
    for copy in range(FURTHER_HOLDERS):
        for worker in range(workers):
            filled.index.forget(f"x{worker}-{copy}")
    longest_seconds, is_more = 0.0, True
    while is_more:
        started = time.process_time()
        is_more = filled.index.sweep()
        longest_seconds = max(longest_seconds, time.process_time() - started)
    return Memory(workers, blocks, one_holder, after_churn, further, longest_seconds * 1e3)


async def restart(blocks: int) -> Restart:
    """Connect a router without any state to workers that hold so many blocks each."""
    source, index, draw = MemorySource(), PrefixIndex(), random.Random(1)
    held: dict[str, list[BlockHash]] = {}
    for worker in range(RESTARTED_WORKERS):
        uid = f"w{worker}"
        # Half of its blocks are also those of the next one.
        held[uid] = blocks_from(worker * blocks // 2, blocks)
        digest = digest_of(held[uid])
        source.messages[uid] = [hello(uid), *snapshot(held[uid], digest), report(draw, digest, is_idle=True)]
    endpoints = [Endpoint(uid=uid, name=uid, url="http://127.0.0.1:1") for uid in held]
    fleet = Fleet(StaticDiscovery(endpoints), source, index=index)
    started = time.perf_counter()
    await fleet.start()
    while not all(map(index.is_precise, held)):  # noqa: ASYNC110 - no event is set by it
        await asyncio.sleep(0.001)
    seconds = time.perf_counter() - started
    differing = 0
    everything = {block for hashes in held.values() for block in hashes}
    for uid, hashes in held.items():
        own = set(hashes)
        differing += sum(index.holds(uid, block) != (block in own) for block in everything)
    await fleet.stop()
    return Restart(seconds, differing)


def text_of(measured: Memory) -> str:
    further = ", ".join(
        f"{number}: {size:.1f}" for number, size in enumerate(measured.per_further_holder, start=1)
    )
    return (
        f"{measured.blocks:,} blocks of {measured.workers} workers: {measured.per_block:.0f} bytes per "
        f"block, {measured.per_block_after_churn:.0f} at most while all are replaced\n"
        f"  bytes per further holder, by their number: {further}\n"
        f"  longest slice of a sweep: {measured.longest_slice_ms:.1f} ms"
    )


def targets_of(measured: Memory) -> list[Target]:
    fleet = f"{measured.workers} workers"
    churned, most_further = measured.per_block_after_churn, max(measured.per_further_holder)
    return [
        Target(f"bytes per block, {fleet}", measured.per_block, BLOCK_BYTES, at_least=False),
        Target(f"the same while all are replaced, {fleet}", churned, BLOCK_BYTES, at_least=False),
        Target(f"bytes per further holder, {fleet}", most_further, FURTHER_HOLDER_BYTES, at_least=False),
        Target(f"longest slice, {fleet}", measured.longest_slice_ms, SLICE_MS, at_least=False, unit=" ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--blocks", type=int, default=2_000_000, help="of all workers together")
    parser.add_argument("--restarted-blocks", type=int, default=100_000, help="of each worker, at a restart")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/index-memory"))
    options = parser.parse_args()
    outcome = Report.begin(options, machine_line())
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1, mp_context=get_context("spawn")) as alone:
        measured = [alone.submit(memory, workers, options.blocks).result() for workers in options.workers]
    restarted = uvloop.run(restart(options.restarted_blocks))
    restart_text = (
        f"restart at {RESTARTED_WORKERS} workers of {options.restarted_blocks:,} blocks: exact after "
        f"{restarted.seconds:.2f} s, {restarted.differing} blocks differ"
    )
    return outcome.end(
        "\n".join((*map(text_of, measured), restart_text)),
        [
            *(target for fleet in measured for target in targets_of(fleet)),
            Target("seconds until exact", restarted.seconds, RESTART_SECONDS, at_least=False, unit=" s"),
            Target("blocks that differ", restarted.differing, 0, at_least=False),
        ],
        memory=[asdict(fleet) for fleet in measured],
        restart=asdict(restarted),
    )


if __name__ == "__main__":
    sys.exit(main())
