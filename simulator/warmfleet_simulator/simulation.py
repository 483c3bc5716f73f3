"""Runs a trace through a fleet: replicas, router, arrivals, autoscaler, report."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_runtime.huge_pages import move_into_huge_pages
from warmfleet_simulator.clock import run_in_virtual_time
from warmfleet_simulator.garbage import seldom_collected
from warmfleet_simulator.progress import OnProgress, Progress, ignore_progress
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.replica.token_gaps import TokenGaps
from warmfleet_simulator.report import Report, Stopped, Tally, inter_token_ms
from warmfleet_simulator.router.admission_bounds import bounds_of_fleet
from warmfleet_simulator.router.fleet import SimulatedFleet
from warmfleet_simulator.router.network import CLUSTER_DELAYS, Delays, Network
from warmfleet_simulator.router.router import SimulatedRouter
from warmfleet_simulator.router.routings import Routing, routing_of
from warmfleet_simulator.scaling.autoscaler import TICK_SECONDS, Autoscaler, Tick
from warmfleet_simulator.scaling.bounds import Met
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.scaling.pods import Pods
from warmfleet_simulator.scaling.replica_change import ReplicaChange
from warmfleet_simulator.step_times import PICOSECONDS
from warmfleet_simulator.traces.request import TraceRequest

IDENTITY: Final = CacheIdentity(b"simulated-cache.")
_START_SECONDS: Final = 1.0
"""From the replicas' start to the first arrival: by then the router follows their event streams."""
_HUGE_PAGES_EVERY: Final = 20_000
"""Requests after which what the simulation has in memory is moved into huge pages: gigabytes, with 1,000
replicas. What that saves is in docs/reference/simulator.md."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a simulation early, because its result is known to be of no use."""

    missed_requests: int | None = None
    """Most requests that may miss the objective."""
    replica_seconds: float | None = None
    """Most that the pods may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """One fleet."""

    replica: ReplicaSettings
    replicas: int
    """Ready at the beginning."""
    routing: str
    """One of `ROUTINGS`."""
    seed: int = 0
    """Of the network's delays."""
    delays: Delays = CLUSTER_DELAYS
    """Of messages between the router and a replica."""
    placements: Mapping[bytes, str] | None = None
    """Which replica each prompt gets, by its `prompt_key`, every prompt there; None: the routing decides."""
    autoscaler: Callable[[], Autoscaler] | None = None
    """Makes what changes the number of replicas; None leaves it as it is."""
    start_delay_seconds: float = 0.0
    """Of a pod that is added."""
    objective: Objective | None = None
    """What the requests are compared with."""
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    """Of one router; more than a hundred replicas have the bounds of several (`bounds_of_fleet`)."""
    limits: Limits = Limits()
    skips_quiet_steps: bool = True


class Simulated(NamedTuple):
    """A report, and which requests met the objective in the order of their ends; none without one."""

    report: Report
    met: Sequence[Met]


def simulate(
    requests: Iterable[TraceRequest],
    settings: SimulationSettings,
    *,
    done_ratio: Callable[[], float] = lambda: 0.0,
    on_progress: OnProgress = ignore_progress,
) -> Report:
    """Answer `requests`, read one after the other.

    `done_ratio` returns how much of the trace is read.

    Raises:
        TraceError: a line of the trace.
        UnknownNameError: the routing.
    """
    return simulate_with_requests(requests, settings, done_ratio=done_ratio, on_progress=on_progress).report


def simulate_with_requests(
    requests: Iterable[TraceRequest],
    settings: SimulationSettings,
    *,
    done_ratio: Callable[[], float] = lambda: 0.0,
    on_progress: OnProgress = ignore_progress,
) -> Simulated:
    """The same, with each request."""

    async def run() -> Simulated:
        simulation = _Simulation(settings)
        return await simulation.run(requests, done_ratio, on_progress)

    return run_in_virtual_time(run())


class _LimitExceededError(Exception):
    """Ends the simulation."""


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The first error that is no group."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


class _Simulation:
    """One fleet and its router on a virtual clock."""

    def __init__(self, settings: SimulationSettings) -> None:
        self._settings = settings
        self._routing: Routing = routing_of(settings.routing)
        self._now = asyncio.get_running_loop().time
        network = Network(settings.seed, settings.delays)
        fleet = SimulatedFleet(network, sees_events=self._routing.sees_events)
        self._router = SimulatedRouter(
            fleet,
            network,
            policy=self._routing.policy,
            admission=bounds_of_fleet(settings.admission, settings.replicas),
            context_tokens=settings.replica.capacity_tokens,
            placements=settings.placements,
        )
        self._pods = Pods(fleet, self._replica, start_delay_seconds=settings.start_delay_seconds)
        self._tally = Tally(settings.objective)
        self._stopped = Stopped.NO
        self._arrived_requests = 0
        self._changes: list[ReplicaChange] = []

    async def run(
        self, requests: Iterable[TraceRequest], done_ratio: Callable[[], float], on_progress: OnProgress
    ) -> Simulated:
        wall_start = time.monotonic()
        self._pods.start_ready(self._settings.replicas)
        await self._router.start()
        try:
            with seldom_collected():
                # A fault of the autoscaler ends the simulation, as one of the trace does.
                async with asyncio.TaskGroup() as tasks:
                    scaler = tasks.create_task(self._scale(self._settings.autoscaler))
                    await self._answer_all(requests, done_ratio, on_progress)
                    scaler.cancel()
        except ExceptionGroup as group:
            if group.subgroup(_LimitExceededError) is None:
                raise _first_of(group) from group
            # A step that ends at this very moment finds its answer cancelled.
            asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        ended_at = max(self._now(), _START_SECONDS)
        await self._router.stop()
        self._pods.close()
        return Simulated(self._report(ended_at, time.monotonic() - wall_start), self._tally.met)

    async def _answer_all(
        self, requests: Iterable[TraceRequest], done_ratio: Callable[[], float], on_progress: OnProgress
    ) -> None:
        async with asyncio.TaskGroup() as answers:
            for request in requests:
                await asyncio.sleep(max(_START_SECONDS + request.arrival_seconds - self._now(), 0))
                answers.create_task(self._answer(request))
                self._arrived_requests += 1
                if not self._arrived_requests % _HUGE_PAGES_EVERY:
                    move_into_huge_pages()
                on_progress(Progress(self._arrived_requests, request.arrival_seconds, done_ratio()))

    async def _answer(self, request: TraceRequest) -> None:
        outcome = await self._router.answer(request)
        self._tally.add(outcome)
        self._stopped = self._limit()
        if self._stopped:
            raise _LimitExceededError

    def _limit(self) -> Stopped:
        """The limit that is exceeded by now."""
        limits = self._settings.limits
        if limits.missed_requests is not None and self._tally.missed > limits.missed_requests:
            return Stopped.MISSED
        if limits.replica_seconds is not None:
            seconds = self._pods.seconds(_START_SECONDS, self._now())
            if seconds.total > limits.replica_seconds:
                return Stopped.COST
        return Stopped.NO

    async def _scale(self, make: Callable[[], Autoscaler] | None) -> None:
        if make is None:
            return
        autoscaler, pods = make(), self._pods
        while True:
            await asyncio.sleep(TICK_SECONDS)
            tick = Tick(
                self._now(),
                pods.state,
                pods.ready_uids,
                self._router.totals(),
                self._arrived_requests,
            )
            wanted = autoscaler.wanted(tick)
            if wanted.replicas != tick.replicas.spec_replicas:
                before = tick.replicas.spec_replicas
                self._changes.append(
                    ReplicaChange(tick.now_seconds, before, wanted.replicas, wanted.decision)
                )
            pods.scale(wanted)

    def _replica(self, uid: str) -> Replica:
        return Replica(
            uid,
            f"epoch-of-{uid}",
            IDENTITY,
            self._settings.replica,
            skips_quiet_steps=self._settings.skips_quiet_steps,
            on_gap=self._router.count_gap,
        )

    def _report(self, ended_at: float, wall_seconds: float) -> Report:
        settings, tally, pods = self._settings, self._tally, self._pods
        gaps = TokenGaps()
        for replica in pods.made:
            gaps.merge(replica.gaps)
        missed_tokens = dict(tally.missed_tokens) if self._routing.sees_events else {}
        pod_seconds = pods.seconds(_START_SECONDS, ended_at)
        token_seconds = settings.replica.step_times.prefill_token_ps / PICOSECONDS
        return Report(
            routing=settings.routing,
            replicas=settings.replicas,
            most_replicas=max(counts.total for counts in pods.timeline),
            replica_seconds=pod_seconds.total,
            pod_seconds=pod_seconds,
            stopped=self._stopped,
            objective_percent=tally.objective_percent(),
            requests=tally.requests,
            met=len(tally.met) - tally.missed,
            answered=tally.answered,
            refused=dict(tally.refused),
            prompt_tokens=tally.prompt_tokens,
            cached_tokens=tally.cached_tokens,
            hit_rate=tally.hit_rate,
            missed_tokens=missed_tokens,
            missed_replica_seconds={cause: tokens * token_seconds for cause, tokens in missed_tokens.items()},
            output_tokens=tally.output_tokens,
            first_token_ms=tally.first_token_ms(),
            inter_token_ms=inter_token_ms(gaps),
            evicted_blocks=sum(replica.evicted_blocks for replica in pods.made),
            steps=sum(replica.steps for replica in pods.made),
            virtual_seconds=ended_at - _START_SECONDS,
            wall_seconds=wall_seconds,
            timeline=pods.timeline,
            changes=self._changes,
            first_arrival_seconds=_START_SECONDS,
            window_seconds=tally.window_seconds,
            windows=tally.windows(),
        )
