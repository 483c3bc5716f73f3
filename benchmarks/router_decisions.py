"""How long does a decision take in a large fleet, and what does the prefix index cost?

In one process, without sockets: the router's fleet, index, picker and admission over workers whose event
streams are read from memory. Prompts are conversations with system prompts in common, as token ids. A
decision is everything between the encoded prompt and the choice of a worker: block hashes, matching, prices,
the lease. Before each of them some workers report other loads, as they do all the time.

    python benchmarks/router_decisions.py [--workers 100 1000] [--policy LeastLoaded]     # about two minutes
"""

import argparse
import asyncio
import gc
import random
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop
from harness.memory_workers import (
    BLOCK_TOKENS,
    IDENTITY,
    MODEL,
    MemorySource,
    digest_of,
    hello,
    report,
    snapshot,
)
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target, percentile
from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.kv_events import ResidentDigest
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.admission.queue_bounds import DEFAULT_IN_FLIGHT, AdmissionSettings
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.policies import POLICIES
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.tenants import Tenant
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.event_stream import StreamTiming
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.prefix_index import PrefixIndex

P95_MS: Final = {100: 1.0, 1000: 5.0}
SYSTEM_PROMPTS: Final = 20
SYSTEM_TOKENS: Final = 1024
PROMPT_TOKENS: Final = 2000
CONVERSATIONS: Final = 2000
REPORTS_BETWEEN: Final = 20


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was measured with one size of fleet."""

    workers: int
    blocks: int
    """In the index; a block that two workers hold counted twice."""
    load_seconds: float
    """From the first connection until every worker is precise, one snapshot after the other."""
    hot_ms: Sequence[float]
    """Decisions about prompts whose prefix some workers hold."""
    cold_ms: Sequence[float]
    """Decisions about prompts of which no worker holds a block."""
    idle_ms: Sequence[float]
    """The same while all workers are idle and equal: the rendezvous hash decides among all of them."""


class Conversations:
    """Prompts, and which workers hold how much of each."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._systems = [self._tokens(SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]
        self.prompts = [
            array("I", [*draw.choice(self._systems), *self._tokens(PROMPT_TOKENS - SYSTEM_TOKENS)])
            for _ in range(CONVERSATIONS)
        ]

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(100_000) for _ in range(count)]

    def new(self) -> "array[int]":
        """A prompt that no worker has seen."""
        return array("I", self._tokens(PROMPT_TOKENS))


def chain(tokens: Sequence[int]) -> list[BlockHash]:
    """Hashes of a prompt's full blocks."""
    return block_hashes(block_root(CacheIdentity(IDENTITY), salt=b"salt"), tokens, BLOCK_TOKENS)


class MeasuredFleet:
    """One router's state over a fleet; `decide` measures one decision."""

    def __init__(self, workers: int, blocks: int, *, policy: str) -> None:
        self._draw = random.Random(workers)
        self.conversations = Conversations(self._draw)
        self._source = MemorySource()
        self.index = PrefixIndex()
        self._leases = Leases("router")
        self._capacity_changed = asyncio.Event()
        self._endpoints = [
            Endpoint(uid=uid, name=uid, url="http://127.0.0.1:1")
            for uid in (f"w{number}" for number in range(workers))
        ]
        self._fleet = Fleet(
            StaticDiscovery(self._endpoints),
            self._source,
            index=self.index,
            # Most workers report nothing while others are asked.
            timing=StreamTiming(busy_silence_seconds=3600, idle_silence_seconds=3600),
            on_frame=self._leases.frame_arrived,
            on_change=self._capacity_changed.set,
        )
        metrics, settings = RouterMetrics(), AdmissionSettings()
        breakers = Breakers()
        self._admission = Admission(
            settings,
            limits=InFlightLimits(DEFAULT_IN_FLIGHT, now=time.monotonic, metrics=metrics),
            workers=self._fleet.workers,
            picker=Picker(self.index, self._leases, policy, breakers),
            leases=self._leases,
            breakers=breakers,
            capacity_changed=self._capacity_changed,
            metrics=metrics,
            touched=self.index.touched,
        )
        self._hashes = BlockHashMemory()
        self._digests: dict[str, ResidentDigest] = {}
        self._fill(blocks)

    def _fill(self, blocks: int) -> None:
        """Give each conversation to one to four workers, and each worker as many more blocks as it lacks."""
        held: dict[str, dict[BlockHash, None]] = {endpoint.uid: {} for endpoint in self._endpoints}
        uids = list(held)
        for prompt in self.conversations.prompts:
            hashes = chain(prompt)
            for uid in self._draw.sample(uids, min(self._draw.choice((1, 1, 2, 4)), len(uids))):
                held[uid].update(dict.fromkeys(hashes[: self._draw.randrange(64, len(hashes) + 1)]))
        for uid, hashes in held.items():
            fill = [BlockHash(self._draw.randbytes(16)) for _ in range(blocks - len(hashes))]
            everything = [*hashes, *fill]
            self._digests[uid] = digest_of(everything)
            self._source.messages[uid] = [
                hello(uid),
                *snapshot(everything, self._digests[uid]),
                report(self._draw, self._digests[uid], is_idle=False),
            ]

    async def start(self) -> float:
        """Connect every worker; returns after how many seconds all are precise."""
        started = time.perf_counter()
        await self._fleet.start()
        while not all(self.index.is_precise(endpoint.uid) for endpoint in self._endpoints):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        took = time.perf_counter() - started
        await self._admission.start()
        self._source.messages.clear()
        return took

    async def stop(self) -> None:
        """Close every stream."""
        await self._admission.stop()
        await self._fleet.stop()

    async def report(self, count: int, *, is_idle: bool = False) -> None:
        """Let some workers report their load."""
        for uid in self._draw.sample(list(self._digests), min(count, len(self._digests))):
            self._source.streams[uid].put_nowait(report(self._draw, self._digests[uid], is_idle=is_idle))
        for _ in range(6):
            await asyncio.sleep(0)

    async def decide(self, tokens: "array[int]") -> float:
        """Milliseconds until a worker is chosen for a prompt and charged for it."""
        now = time.monotonic()
        started = time.perf_counter()
        prompts = RequestPrompts(
            encoded={"t": [tokens]}, salt=b"salt", hash_memory=self._hashes, body_bytes=8000, head=b""
        )
        request = QueuedRequest(
            model=MODEL,
            tenant=Tenant(name="tenant"),
            prompts=prompts,
            prompt_tokens=len(tokens),
            body_bytes=8000,
            sequences=1,
            priority=0,
            output_limit_tokens=100,
            arrived_at=now,
            body_read_at=now,
        )
        dispatch = await self._admission.submit(request, on_queued=lambda _behind, _because: None)
        took = time.perf_counter() - started
        dispatch.lease.first_byte()
        dispatch.release()
        return took * 1e3


async def measure(workers: int, blocks: int, count: int, *, policy: str) -> Decisions:
    """`count` decisions of each kind."""
    fleet = MeasuredFleet(workers, blocks, policy=policy)
    load_seconds = await fleet.start()
    gc.collect()
    gc.freeze()
    draw = random.Random(1)
    hot, cold, idle = [], [], []
    for _ in range(count):
        await fleet.report(REPORTS_BETWEEN)
        hot.append(await fleet.decide(draw.choice(fleet.conversations.prompts)))
        await fleet.report(REPORTS_BETWEEN)
        cold.append(await fleet.decide(fleet.conversations.new()))
    await fleet.report(workers, is_idle=True)
    for _ in range(count):
        await fleet.report(REPORTS_BETWEEN, is_idle=True)
        idle.append(await fleet.decide(fleet.conversations.new()))
    held = fleet.index.blocks
    await fleet.stop()
    return Decisions(workers, held, load_seconds, hot, cold, idle)


def line(name: str, times_ms: Sequence[float]) -> str:
    p50, p95, p99 = (percentile(times_ms, percent) for percent in (50, 95, 99))
    return f"  {name}: median {p50:.2f} ms, 95th percentile {p95:.2f} ms, 99th {p99:.2f} ms"


def text_of(measured: Decisions) -> str:
    fleet = f"{measured.workers} workers, {measured.blocks:,} blocks in the index"
    return "\n".join(
        (
            f"{fleet}, all precise after {measured.load_seconds:.1f} s",
            line("prefix held", measured.hot_ms),
            line("new prompt", measured.cold_ms),
            line("new prompt, all workers idle and equal", measured.idle_ms),
        )
    )


def targets_of(measured: Decisions) -> list[Target]:
    limit_ms = P95_MS.get(measured.workers)
    if limit_ms is None:
        return []
    kinds = {"prefix held": measured.hot_ms, "new prompt": measured.cold_ms, "all idle": measured.idle_ms}
    return [
        Target(
            f"95th percentile at {measured.workers} workers, {kind}",
            percentile(times_ms, 95),
            limit_ms,
            at_least=False,
            unit=" ms",
        )
        for kind, times_ms in kinds.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--blocks", type=int, default=10_000, help="of each worker")
    parser.add_argument("--decisions", type=int, default=400, help="of each kind")
    parser.add_argument("--policy", choices=POLICIES, default="LowestCost")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/router-decisions"))
    options = parser.parse_args()
    outcome = Report.begin(options, machine_line())
    blocks, decisions = options.blocks, options.decisions
    measured = [
        uvloop.run(measure(workers, blocks, decisions, policy=options.policy)) for workers in options.workers
    ]
    return outcome.end(
        "\n".join(map(text_of, measured)),
        [target for fleet in measured for target in targets_of(fleet)],
        decisions=[asdict(fleet) for fleet in measured],
    )


if __name__ == "__main__":
    sys.exit(main())
