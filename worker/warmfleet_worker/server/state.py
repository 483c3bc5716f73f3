"""State that the endpoints of one worker share."""

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.segment_memory import SegmentMemory
from warmfleet_worker.engine.messages import EngineReady, StepReport
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.server.engine_client import EngineClient
from warmfleet_worker.server.events import EventHub
from warmfleet_worker.server.prewarm import Warmup
from warmfleet_worker.server.token_texts import TokenTexts
from warmfleet_worker.settings import WorkerSettings
from warmfleet_worker.start_clock import StartClock


class OpenAnswers:
    """Counts the answers that are being written, so that a drain can wait for the last."""

    def __init__(self) -> None:
        self._open = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._open += 1
        self._none.clear()

    def __exit__(self, *exception: object) -> None:
        self._open -= 1
        if not self._open:
            self._none.set()

    async def wait_for_none(self) -> None:
        await self._none.wait()


@dataclass(slots=True)
class WorkerState:
    """One worker's parts; `__main__` builds it."""

    settings: WorkerSettings
    assets: PromptAssets
    encoder: PromptEncoder
    token_texts: TokenTexts
    engine: EngineClient
    events: EventHub
    warmup: Warmup
    metrics: WorkerMetrics
    start: StartClock
    started_seconds: int
    """Unix time."""
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS
    """Those of the event stream that it speaks."""
    draining: bool = False
    open_answers: OpenAnswers = field(default_factory=OpenAnswers)
    segment_memory: SegmentMemory = field(default_factory=SegmentMemory)
    stalled: bool = False
    """Whether the engine has work and reports no step; set by the watchdog."""
    ended: bool = False
    """Whether the engine is gone: this process is about to end, too."""

    def ready_engine(self) -> EngineReady:
        """The engine's configuration, if new requests can be served.

        Raises:
            RequestError: 503; it is not ready or stalled, or the worker drains.
        """
        if self.draining:
            raise self.not_ready_error("this worker is draining")
        if self.ended or self.engine.ready is None:
            raise self.not_ready_error("the engine is not ready")
        if self.stalled:
            raise self.not_ready_error("the engine has work and reports no step")
        return self.engine.ready

    def check_capacity(self, sequences: int) -> None:
        """Check the bound on live sequences before any work is done.

        Raises:
            RequestError: 429 while there are too many; 400 for a request that alone has too many.
        """
        limit = self.settings.max_live_sequences
        if sequences > limit:
            raise RequestError(f"the request asks for {sequences} answers, this worker has {limit} at once")
        if self.engine.live_sequences + sequences > limit:
            raise RequestError(
                f"this worker has {self.engine.live_sequences} live sequences, the limit is {limit}",
                status=429,
                type="rate_limit_error",
                code="overloaded",
                retry_after_seconds=1,
            )

    def not_ready_error(self, reason: str) -> RequestError:
        return RequestError(reason, status=503, type="server_error", code="not_ready", retry_after_seconds=1)

    @property
    def alive(self) -> bool:
        """False when the engine is gone, or has work and reports no step."""
        return not (self.ended or self.stalled)


class ReportForwarder:
    """Forwards the engine's reports to the event hub and the metrics."""

    def __init__(self, events: EventHub, metrics: WorkerMetrics, warmup: Warmup, start: StartClock) -> None:
        self._events = events
        self._metrics = metrics
        self._warmup = warmup
        self._start = start

    @property
    def position(self) -> str:
        return self._events.position

    def on_ready(self, ready: EngineReady) -> None:
        self._start.engine_ready(imports_at=ready.imports_at_seconds, load_at=ready.load_at_seconds)
        self._metrics.on_ready(ready)
        self._events.start(ready)
        self._warmup.begin()

    def on_report(self, report: StepReport) -> None:
        self._metrics.on_report(report)
        self._events.apply(report)
