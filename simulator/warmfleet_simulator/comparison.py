"""What `warmfleet simulate` asks for by name: replicas, ways to route, policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_simulator.autoscalers.catalog import check_setting, make_autoscaler, parse_setting
from warmfleet_simulator.errors import SettingError, SimulationError
from warmfleet_simulator.hardware import replica_settings
from warmfleet_simulator.parallel_runs import Run, Runs, single
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.router.routings import ROUTINGS, routing_of
from warmfleet_simulator.scaling.autoscaler import Autoscaler
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.scaling.operator_policy import OperatorAutoscaler
from warmfleet_simulator.simulation import Simulated, SimulationSettings
from warmfleet_simulator.step_times import StepTimes

ALL: Final = "all"
OPERATOR: Final = "Operator"
FIXED: Final = "Fixed"
MAX_REPLICAS: Final = 1000
"""Most that the autoscaler may want."""
MAX_DIGITS: Final = 4
MAX_FILE_BYTES: Final = 64 * 1024
"""Of a file with step times."""
MAX_VALUE: Final = 1_000_000
"""Of one of its fields, in seconds or tokens."""


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
    target_step_milliseconds: int

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
        return replace(chosen, seats=self.seats, target_step_milliseconds=self.target_step_milliseconds)


@dataclass(frozen=True, slots=True)
class SimulatedDeployment:
    """What is simulated of a deployment: the operator's policy as its user has set it, and its steps.

    The policy's `min_replicas` is 1 at least: a simulated fleet does not sleep.
    """

    name: str
    """The deployment's."""
    spec: AutoscalingSpec
    """`spec.autoscaling`."""
    replicas: int
    """`spec.replicas`, which may be below its bounds."""
    target_step_milliseconds: int | None = None
    """`engine.targetStepMilliseconds`; None: not given, so that the objective's holds.

    What simulates the deployment puts it into `ReplicaChoice`; policies do not read it.
    """
    not_simulated: tuple[str, ...] = ()
    """Fields by which its replicas plan their steps otherwise than simulated ones."""

    def bounded(self, replicas: int) -> int:
        """So many replicas, within its bounds."""
        return min(max(replicas, self.spec.min_replicas), self.spec.max_replicas)


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


def compare_routings(runs: Runs, routings: Sequence[str], settings: SimulationSettings) -> list[Simulated]:
    """What comes of each routing.

    Raises:
        TraceError: a line of the trace.
    """
    runs.plan(len(routings))
    return runs.complete([single(Run(name, replace(settings, routing=name))) for name in routings])


def operator_autoscaler(
    objective: Objective, deployed: SimulatedDeployment | None = None
) -> Callable[[], Autoscaler]:
    """Makes the operator's policy: `deployed`, or all defaults and the objective as latency targets."""
    if deployed is not None:
        return partial(OperatorAutoscaler, AutoscalingPolicy.of(deployed.spec))
    return partial(OperatorAutoscaler, objective.policy(max_replicas=MAX_REPLICAS))


def with_policy(
    settings: SimulationSettings,
    policy: str,
    objective: Objective | None,
    deployed: SimulatedDeployment | None = None,
) -> SimulationSettings:
    """`settings` with the policy of `Fixed`, `Fixed:8`, `Operator`, or as `KvUtilization:60` another's.

    With `deployed` the operator's policy is that of a deployment, which begins within its bounds.

    Raises:
        SimulationError: there is no such policy or setting, or it needs an objective.
    """
    name, colon, text = policy.partition(":")
    if name == FIXED:
        return replace(settings, replicas=_replicas(text)) if colon else settings
    if objective is None:
        raise SimulationError(f"{policy} needs an objective")
    if policy == OPERATOR:
        autoscaler = operator_autoscaler(objective, deployed)
        if deployed is not None:
            settings = replace(settings, replicas=deployed.bounded(settings.replicas))
    else:
        setting = parse_setting(text)
        check_setting(name, setting)
        autoscaler = partial(make_autoscaler, name, setting, objective)
    return replace(settings, autoscaler=autoscaler, start_delay_seconds=objective.start_delay_seconds)


def _replicas(text: str) -> int:
    if not (text.isdecimal() and len(text) <= MAX_DIGITS and 1 <= int(text) <= MAX_REPLICAS):
        raise SettingError(FIXED, f"replicas, at most {MAX_REPLICAS}", text)
    return int(text)


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
