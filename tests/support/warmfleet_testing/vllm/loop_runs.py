"""Runs the engine loop with a stand-in for vLLM, and keeps what its server would get."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.cache.resident import ResidentSet
from warmfleet_testing.vllm.stand_in import BLOCK_TOKENS, StandInVllm
from warmfleet_worker.engine.messages import (
    AddSequences,
    EngineMetrics,
    NewSequence,
    SequenceUpdate,
    StepReport,
    packed_tokens,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.vllm_engine.loop import EngineLoop

IDENTITY = CacheIdentity(bytes(range(16)))
SALT = b"salt of a tenant"


class Server:
    """Keeps a mirror of the resident set and what each sequence got."""

    def __init__(self) -> None:
        self.mirror = ResidentSet("epoch")
        self.reports: list[StepReport] = []
        self.metrics: list[bytes] = []
        self.updates: dict[int, list[SequenceUpdate]] = {}
        self.arrived = asyncio.Event()

    def take(self, report: StepReport | EngineMetrics) -> None:
        if isinstance(report, EngineMetrics):
            self.metrics.append(report.text)
            self.arrived.set()
            return
        self.reports.append(report)
        if report.cleared or report.stored or report.removed:
            self.mirror.change(
                report.seq, cleared=report.cleared, stored=report.stored, removed=report.removed
            )
        assert report.seq == self.mirror.seq
        for update in report.updates:
            self.updates.setdefault(update.sequence_id, []).append(update)
        self.arrived.set()

    @property
    def load(self) -> LoadReport:
        return self.reports[-1].load

    def tokens(self, sequence_id: int) -> list[int]:
        return [token for update in self.updates.get(sequence_id, ()) for token in update.token_ids]

    def finish(self, sequence_id: int) -> str:
        updates = self.updates.get(sequence_id)
        return updates[-1].finish_reason if updates else ""

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def ended(self, *sequence_ids: int) -> None:
        await self.until(lambda: all(self.finish(one) for one in sequence_ids))


def add(
    prompt: Sequence[int],
    *sequence_ids: int,
    salt: bytes = SALT,
    sampling: SamplingParameters | None = None,
    **fields: Any,
) -> AddSequences:
    return AddSequences(
        sequences=[NewSequence(one, seed=one) for one in sequence_ids],
        prompt=packed_tokens(prompt),
        salt=salt,
        sampling=sampling or SamplingParameters(max_output_tokens=4),
        **fields,
    )


def hashes(tokens: Sequence[int], salt: bytes = SALT) -> list[BlockHash]:
    return block_hashes(block_root(IDENTITY, salt=salt), tokens, BLOCK_TOKENS)


@asynccontextmanager
async def running(
    vllm: StandInVllm | None = None, *, steps: bool = True, check: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[EngineLoop, Server, StandInVllm, "asyncio.Task[None]"]]:
    """A warm engine loop; without `steps` the test steps its vLLM itself."""
    vllm = vllm or StandInVllm()
    server = Server()
    engine = EngineLoop(vllm, vllm.facts, IDENTITY, send=server.take, check=check, prefix_caching=True)
    warm = asyncio.Event()

    async def converse() -> None:
        await engine.warm_up()
        engine.begin_reports()
        warm.set()
        await asyncio.Event().wait()

    stepping = asyncio.create_task(vllm.run_steps())
    following = asyncio.create_task(engine.run(vllm, converse()))
    await asyncio.wait(
        {following, asyncio.create_task(warm.wait())}, return_when=asyncio.FIRST_COMPLETED, timeout=10
    )
    if following.done():
        stepping.cancel()
        following.result()
    if not steps:
        stepping.cancel()
    try:
        yield engine, server, vllm, following
    finally:
        for task in (stepping, following):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
