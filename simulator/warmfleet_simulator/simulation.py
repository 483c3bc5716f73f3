"""Runs a trace through a fleet: replicas, router, arrivals, report."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_simulator.clock import run_in_virtual_time
from warmfleet_simulator.progress import OnProgress, Progress, ignore_progress
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.replica.token_gaps import TokenGaps
from warmfleet_simulator.report import Report, Tally, inter_token_ms
from warmfleet_simulator.router.fleet import SimulatedFleet
from warmfleet_simulator.router.network import Network
from warmfleet_simulator.router.router import SimulatedRouter
from warmfleet_simulator.router.routings import routing_of
from warmfleet_simulator.step_times import PICOSECONDS
from warmfleet_simulator.traces.request import TraceRequest

IDENTITY = CacheIdentity(b"simulated-cache.")
_START_SECONDS = 1.0
"""From the replicas' start to the first arrival: by then the router follows their event streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """One fleet."""

    replica: ReplicaSettings
    replicas: int
    routing: str
    """One of `ROUTINGS`."""
    seed: int = 0
    """Of the network's delays."""
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    skips_quiet_steps: bool = True


def simulate(
    requests: Iterable[TraceRequest],
    settings: SimulationSettings,
    *,
    done_ratio: Callable[[], float] = lambda: 0.0,
    on_progress: OnProgress = ignore_progress,
) -> Report:
    """Answer `requests`, read one after the other, with a fleet of fixed size.

    `done_ratio` returns how much of the trace is read.

    Raises:
        TraceError: a line of the trace.
        UnknownNameError: the routing.
    """
    return run_in_virtual_time(_simulate(requests, settings, done_ratio, on_progress))


async def _simulate(
    requests: Iterable[TraceRequest],
    settings: SimulationSettings,
    done_ratio: Callable[[], float],
    on_progress: OnProgress,
) -> Report:
    wall_start = time.monotonic()
    routing = routing_of(settings.routing)
    network = Network(settings.seed)
    fleet = SimulatedFleet(network, sees_events=routing.sees_events)
    replicas = [
        Replica(
            f"replica-{number:04}",
            f"epoch-{number}",
            IDENTITY,
            settings.replica,
            skips_quiet_steps=settings.skips_quiet_steps,
        )
        for number in range(settings.replicas)
    ]
    for replica in replicas:
        fleet.add(replica)
    router = SimulatedRouter(
        fleet,
        network,
        policy=routing.policy,
        admission=settings.admission,
        context_tokens=settings.replica.capacity_tokens,
    )
    await router.start()
    tally, now = Tally(), asyncio.get_running_loop().time

    async def answer(request: TraceRequest) -> None:
        tally.add(await router.answer(request))

    read = 0
    try:
        async with asyncio.TaskGroup() as answers:
            for request in requests:
                await asyncio.sleep(max(_START_SECONDS + request.arrival_seconds - now(), 0))
                answers.create_task(answer(request))
                read += 1
                on_progress(Progress(read, request.arrival_seconds, done_ratio()))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group  # of the trace, most likely
    virtual_seconds = max(now() - _START_SECONDS, 0.0)
    await router.stop()
    for replica in replicas:
        replica.close()
    gaps = TokenGaps()
    for replica in replicas:
        gaps.merge(replica.gaps)
    missed_tokens = dict(tally.missed_tokens) if routing.sees_events else {}
    return Report(
        routing=settings.routing,
        replicas=settings.replicas,
        replica_seconds=settings.replicas * virtual_seconds,
        requests=tally.requests,
        answered=tally.answered,
        refused=dict(tally.refused),
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        hit_rate=tally.hit_rate,
        missed_tokens=missed_tokens,
        missed_replica_seconds={
            cause: tokens * settings.replica.step_times.prefill_token_ps / PICOSECONDS
            for cause, tokens in missed_tokens.items()
        },
        output_tokens=tally.output_tokens,
        first_token_ms=tally.first_token_ms(),
        inter_token_ms=inter_token_ms(gaps),
        evicted_blocks=sum(replica.evicted_blocks for replica in replicas),
        steps=sum(replica.steps for replica in replicas),
        virtual_seconds=virtual_seconds,
        wall_seconds=time.monotonic() - wall_start,
    )
