"""What a ModelDeployment asks for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.names import ENGINE_CONTAINER
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.errors import SpecError, UnsupportedError
from warmfleet_operator.desired.model import is_fetched
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_operator.desired.worker import replicas
from warmfleet_operator.objects.kinds import DEPLOYMENT, kind_of
from warmfleet_operator.objects.rollouts import spec_hash
from warmfleet_operator.reconcile.plan import Manifest
from warmfleet_operator.replicas.number import ReplicaBounds
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.problem import Problem


@dataclass(frozen=True, slots=True)
class Wanted:
    """The objects and figures that follow from a spec."""

    objects: tuple[Manifest, ...] = ()
    replicas: int = 0
    """By the spec alone."""
    image: str = ""
    is_fetched: bool = True
    bounds: ReplicaBounds = field(default_factory=ReplicaBounds)
    policy: AutoscalingPolicy | None = None
    """By which the number of replicas is decided; None where nothing decides it."""
    spec_hash: str = ""
    """Hash of what the user wrote; it decides whether a user or a release causes a rollout."""
    problem: Problem | None = None
    """Why no objects follow from the spec; `objects` is empty then."""


def wanted_by(deployment: Mapping[str, Any], settings: OperatorSettings) -> Wanted:
    """What a ModelDeployment of the API server asks for, or the problem with its spec."""
    try:
        checked = CheckedDeployment.from_object(deployment)
    except ManifestError as error:
        return Wanted(problem=Problem(Reason.INVALID_SPEC, str(error)))
    number, fetched = replicas(checked), is_fetched(checked)
    try:
        objects = desired_objects(checked, settings)
    except UnsupportedError as error:
        problem = Problem(Reason.UNSUPPORTED_SPEC, str(error))
        return Wanted(replicas=number, is_fetched=fetched, problem=problem)
    except SpecError as error:
        problem = Problem(Reason.INVALID_SPEC, str(error))
        return Wanted(replicas=number, is_fetched=fetched, problem=problem)
    workers = next(manifest for manifest in objects if kind_of(manifest) is DEPLOYMENT)
    containers = workers["spec"]["template"]["spec"]["containers"]
    image = next(
        str(container.get("image", "")) for container in containers if container["name"] == ENGINE_CONTAINER
    )
    bounds = ReplicaBounds.of(checked.spec)
    return Wanted(
        objects, number, image, fetched, bounds, _policy(checked), spec_hash(checked.written_spec())
    )


def _policy(checked: CheckedDeployment) -> AutoscalingPolicy | None:
    scaling = checked.spec.autoscaling
    if scaling is None or scaling.mode == "Paused" or checked.spec.suspend:
        return None
    return AutoscalingPolicy.of(scaling)
