"""What a user wants of a workload, and on what: one entry of `examples/slo.yaml`."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
import yaml

from warmfleet_contracts.plain_yaml import read_document
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_simulator.errors import ObjectiveError, UnknownNameError
from warmfleet_simulator.replica.settings import DEFAULT_TARGET_STEP_MILLISECONDS
from warmfleet_simulator.router.outcome import Outcome
from warmfleet_simulator.workloads.named import AnyWorkload

MAX_FILE_BYTES: Final = 64 * 1024
_Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=600_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The service level objective of one workload, and the replicas that are to meet it."""

    gpu: str
    model: str
    first_token_milliseconds: _Milliseconds
    """From a request's arrival."""
    between_tokens_milliseconds: _Milliseconds
    """Mean over one answer."""
    percent: Annotated[int, msgspec.Meta(ge=50, le=99)] = 97
    """Of all requests, refused ones among them, that must meet both."""
    start_delay_seconds: _Seconds = 120.0
    """From a pod's creation to its readiness."""
    peak_window_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    target_step_milliseconds: Annotated[int, msgspec.Meta(ge=10, le=10_000)] = (
        DEFAULT_TARGET_STEP_MILLISECONDS
    )
    """`engine.targetStepMilliseconds`, of a deployment that does not state its own."""
    generate: AnyWorkload | None = None
    """What makes its requests, where they are not read from a trace."""

    def is_met(self, outcome: Outcome) -> bool:
        """Whether one request was within it."""
        return (
            not outcome.refusal
            and 1e3 * outcome.first_token_seconds <= self.first_token_milliseconds
            and 1e3 * outcome.seconds_per_token <= self.between_tokens_milliseconds
        )

    def policy(self, *, max_replicas: int) -> AutoscalingPolicy:
        """The operator's policy with all defaults, and this objective as its latency targets."""
        targets = {
            "firstToken": self.first_token_milliseconds,
            "betweenTokens": self.between_tokens_milliseconds,
        }
        latency = {
            name: {"percentile": self.percent, "targetMilliseconds": milliseconds}
            for name, milliseconds in targets.items()
        }
        spec = {"maxReplicas": max_replicas, "latency": latency}
        return AutoscalingPolicy.of(AutoscalingSpec.model_validate(spec))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workloads: dict[str, Objective]


def read_objective(path: Path, workload: str) -> Objective:
    """The objective of `workload`; it may be empty where the file has only one.

    Raises:
        SimulationError: the file is unusable, the text names the field; or there is no such workload.
    """
    try:
        with path.open("rb") as file:
            document = read_document(file.read(MAX_FILE_BYTES))
        workloads = msgspec.convert(document, _File).workloads
    except OSError as error:
        raise ObjectiveError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ObjectiveError(f"{path}: {' '.join(str(error).split())}") from error
    if not workload and len(workloads) == 1:
        return next(iter(workloads.values()))
    if workload not in workloads:
        raise UnknownNameError("workload", workload, workloads)
    return workloads[workload]
