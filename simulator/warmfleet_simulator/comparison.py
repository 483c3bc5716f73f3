"""Runs one traffic through several fleets, one after the other, as `warmfleet simulate` asks for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_simulator.autoscalers.catalog import check_setting, make_autoscaler, parse_setting
from warmfleet_simulator.errors import SimulationError
from warmfleet_simulator.hardware import replica_settings
from warmfleet_simulator.progress import Progress
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.report import Report
from warmfleet_simulator.router.routings import ROUTINGS, routing_of
from warmfleet_simulator.scaling.autoscaler import Autoscaler
from warmfleet_simulator.scaling.bounds import Met, clairvoyant_seconds, peak_static, windows_needed
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.scaling.operator_policy import OperatorAutoscaler
from warmfleet_simulator.simulation import Simulated, SimulationSettings, simulate_with_requests
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.traffic import Traffic

NamedProgress = Callable[[str, Progress], None]
"""Gets the name of what is simulated, and how far it is."""
ALL: Final = "all"
OPERATOR: Final = "Operator"
FIXED: Final = "Fixed"
MAX_REPLICAS: Final = 1000
"""Most that the autoscaler may want."""
FAILED_PERCENT: Final = 80.0
"""A fleet in which fewer requests meet the objective shows nothing of single windows any more."""
MAX_FILE_BYTES: Final = 64 * 1024
"""Of a file with step times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice:
    """What a user gives of a replica."""

    gpu: str
    model: str
    step_times: Path | None = None
    """A JSON object with the fields of `StepTimeFit`, in place of the GPU's times."""
    kv_tokens: int | None = None
    """Of its KV cache, in place of what the GPU's memory leaves."""
    block_size_tokens: int
    seats: int

    def settings(self) -> ReplicaSettings:
        """The replica.

        Raises:
            SimulationError: a name, or the file with step times.
        """
        chosen = replica_settings(self.gpu, self.model, block_size_tokens=self.block_size_tokens)
        if self.step_times is not None:
            chosen = replace(chosen, step_times=read_step_times(self.step_times))
        if self.kv_tokens is not None:
            chosen = replace(chosen, total_blocks=max(self.kv_tokens // self.block_size_tokens, 1))
        return replace(chosen, seats=self.seats)


def named_routings(names: str) -> Sequence[str]:
    """The ways to route of a comma-separated list, or all of them.

    Raises:
        UnknownNameError: one is unknown.
    """
    if names == ALL:
        return tuple(ROUTINGS)
    listed = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in listed:
        routing_of(name)
    return listed


def compare_routings(
    traffic: Traffic,
    routings: Sequence[str],
    *,
    settings: SimulationSettings,
    on_progress: NamedProgress,
) -> Iterator[Report]:
    """The report of each routing, as soon as it is done; `on_progress` gets its name, too.

    Raises:
        TraceError: a line of the trace.
    """
    for name in routings:
        yield _simulate(traffic, replace(settings, routing=name), name, on_progress).report


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingComparison:
    """An autoscaled fleet beside what fleets cost that know the traffic."""

    peak_static_replicas: int
    """The smallest fleet of fixed size that meets the objective in the busiest window."""
    peak_static_replica_seconds: float
    clairvoyant_replica_seconds: float
    """Of a fleet that knows each window in advance."""
    smallest_fleet: int
    """No smaller one was simulated; the clairvoyant fleet has as many replicas at least."""
    fixed: Mapping[int, Report]
    """By size, from the largest on."""
    autoscaled: Report
    """Of the operator's policy, which begins with what the first window needs."""


def compare_scaling(
    traffic: Traffic, *, settings: SimulationSettings, objective: Objective, on_progress: NamedProgress
) -> ScalingComparison:
    """Fleets of fixed size, from `settings.replicas` down to one that fails, then the operator's policy.

    Raises:
        TraceError: a line of the trace.
        SimulationError: the trace is empty, or the largest fleet does not meet the objective.
    """
    settings = replace(settings, autoscaler=None, objective=objective)
    fixed: dict[int, Report] = {}
    met: dict[int, Sequence[Met]] = {}
    for replicas in range(settings.replicas, 0, -1):
        fleet = _simulate(traffic, replace(settings, replicas=replicas), f"{replicas} replicas", on_progress)
        fixed[replicas], met[replicas] = fleet.report, fleet.met
        if (fleet.report.objective_percent or 0.0) < FAILED_PERCENT:
            break
    if not met[settings.replicas]:
        raise SimulationError(f"{traffic.name} has no requests")
    peak = peak_static(met, objective)
    if peak is None:
        raise SimulationError(
            f"{settings.replicas} replicas do not meet the objective in the busiest window: give more"
        )
    until_seconds = max(request.arrival_seconds for request in met[peak])
    autoscaled = _simulate(
        traffic,
        replace(
            with_policy(settings, OPERATOR, objective),
            replicas=windows_needed(met, objective, until_seconds=until_seconds)[0],
        ),
        OPERATOR,
        on_progress,
    ).report
    return ScalingComparison(
        peak_static_replicas=peak,
        peak_static_replica_seconds=fixed[peak].replica_seconds,
        clairvoyant_replica_seconds=clairvoyant_seconds(met, objective, until_seconds=until_seconds),
        smallest_fleet=min(fixed),
        fixed=fixed,
        autoscaled=autoscaled,
    )


def operator_autoscaler(objective: Objective) -> Callable[[], Autoscaler]:
    """Makes the operator's policy with its defaults and the objective as latency targets."""
    return partial(OperatorAutoscaler, objective.policy(max_replicas=MAX_REPLICAS))


def with_policy(settings: SimulationSettings, policy: str, objective: Objective | None) -> SimulationSettings:
    """`settings` with the policy of `Fixed`, `Operator`, or as `KvUtilization:60` another with its setting.

    Raises:
        SimulationError: there is no such policy or setting, or it needs an objective.
    """
    if policy == FIXED:
        return settings
    if objective is None:
        raise SimulationError(f"{policy} needs an objective")
    name, _, text = policy.partition(":")
    if policy == OPERATOR:
        autoscaler = operator_autoscaler(objective)
    else:
        setting = parse_setting(text)
        check_setting(name, setting)
        autoscaler = partial(make_autoscaler, name, setting, objective)
    return replace(settings, autoscaler=autoscaler, start_delay_seconds=objective.start_delay_seconds)


def _simulate(
    traffic: Traffic, settings: SimulationSettings, name: str, on_progress: NamedProgress
) -> Simulated:
    with traffic.open() as reading:
        return simulate_with_requests(
            reading.requests,
            settings,
            done_ratio=reading.done_ratio,
            on_progress=lambda progress: on_progress(name, progress),
        )


def read_step_times(path: Path) -> StepTimes:
    """The step times that an engine was measured to have.

    Raises:
        SimulationError: the file cannot be read, or no step can take such times.
    """
    try:
        with path.open("rb") as file:
            fit = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=StepTimeFit)
    except OSError as error:
        raise SimulationError(f"{path}: {error.strerror}") from error
    except UNDECODABLE as error:
        raise SimulationError(f"{path}: {error}") from error
    for name, value in msgspec.structs.asdict(fit).items():
        if not 0 <= value <= MAX_VALUE:
            raise SimulationError(f"{path}: {name} {value} is not between 0 and {MAX_VALUE}")
    if not fit.base_seconds or not fit.per_prefill_token_seconds:
        raise SimulationError(f"{path}: base_seconds and per_prefill_token_seconds are needed")
    return StepTimes.of(fit)


MAX_VALUE: Final = 1_000_000
"""Of one field, in seconds or tokens."""
