"""Admission over a fleet whose workers are changed by hand: no sockets, and a clock that a test moves."""

import asyncio
import math
from types import TracebackType
from typing import Any, Final, Self

from warmfleet_contracts.cache.kv_events import LoadReport, StepTimeFit
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.in_flight_limits import InFlightLimits, InFlightTicket
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.picker import Picker, RankedWorkers
from warmfleet_router.tenants import ANONYMOUS, Tenant
from warmfleet_testing.router.picker_fleet import PickerFleet, prompts

MODEL: Final = "m"


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def seats(total: int, running: int, *, queued_tokens: int = 0) -> LoadReport:
    """The report of a worker with `total` seats, 1,000 prompt tokens per second and free blocks."""
    return LoadReport(
        step_time=StepTimeFit(per_prefill_token_seconds=0.001, samples=100),
        max_running_sequences=total,
        running_sequences=running,
        queued_uncached_tokens=queued_tokens,
        total_blocks=100_000,
    )


class CountingPicker(Picker):
    """Counts `choices`: rankings for one request, each of which prices all workers."""

    choices = 0
    choice_seconds = 0.0
    """By how much each one moves the clock of `AdmissionFleet`."""

    def __init__(self, clock: Clock, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = clock

    def rank(self, *arguments: Any, **options: Any) -> RankedWorkers | None:
        """As `Picker` does."""
        self.choices += 1
        self._clock.seconds += self.choice_seconds
        return super().rank(*arguments, **options)


class AdmissionFleet:
    """A started `Admission` over workers `w0` and up; `async with` stops it and ends what still waits."""

    def __init__(self, workers: int, load: LoadReport) -> None:
        self.clock = Clock()
        self.fleet = PickerFleet(*(f"w{number}" for number in range(workers)), now=self.clock)
        for uid in self.fleet.load:
            self.fleet.load[uid] = load
        self.picker = CountingPicker(
            self.clock, self.fleet.index, self.fleet.leases, "LowestCost", self.fleet.breakers
        )
        metrics, settings = RouterMetrics(), AdmissionSettings(max_wait_seconds=math.inf)
        self._limits = InFlightLimits(settings.max_in_flight, now=self.clock, metrics=metrics)
        self.capacity_changed = asyncio.Event()
        self.admission = Admission(
            settings,
            limits=self._limits,
            workers=lambda _model: self.fleet.workers,
            picker=self.picker,
            leases=self.fleet.leases,
            breakers=self.fleet.breakers,
            capacity_changed=self.capacity_changed,
            metrics=metrics,
        )
        self._waits: list[asyncio.Task[Dispatch]] = []

    async def __aenter__(self) -> Self:
        await self.admission.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.admission.stop()
        for waiting in self._waits:
            waiting.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)

    def submit(
        self, tokens: list[int], *, choices: int = 1, tenant: Tenant = ANONYMOUS, is_suspect: bool = False
    ) -> "asyncio.Task[Dispatch]":
        """One request for `choices` answers to a prompt."""
        request = QueuedRequest(
            model=MODEL,
            tenant=tenant,
            prompts=prompts(tokens, choices=choices),
            prompt_tokens=len(tokens),
            body_bytes=1000,
            sequences=choices,
            priority=0,
            output_limit_tokens=None,
            arrived_at=self.clock(),
            body_read_at=self.clock(),
            is_suspect=is_suspect,
        )
        waiting = asyncio.create_task(
            self.admission.submit(request, on_queued=lambda _behind, _because: None)
        )
        self._waits.append(waiting)
        return waiting

    @property
    def dispatched(self) -> list[Dispatch]:
        """Of the requests that got a worker, in the order in which they came."""
        return [waiting.result() for waiting in self._waits if waiting.done()]

    def ticket(self) -> InFlightTicket:
        """What a request has before its body is read."""
        return self._limits.enter(ANONYMOUS)

    async def report(self, uid: str, load: LoadReport) -> None:
        """A worker reports `load`; returns when the queue has been served with it."""
        self.fleet.load[uid] = load
        await self.serve()

    async def serve(self) -> None:
        """Let the queue be served once more, and those that got a worker go on."""
        self.capacity_changed.set()
        async with asyncio.timeout(10):
            while self.capacity_changed.is_set():  # noqa: ASYNC110 - the dispatcher clears it
                await asyncio.sleep(0.001)
            await self.settle()

    async def settle(self) -> None:
        """Let requests go on as far as they do without anything that a test changes."""
        for _ in range(100):
            await asyncio.sleep(0)
