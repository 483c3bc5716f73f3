"""What a ModelDeployment asks for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.commits import HubRevision, Unresolved, with_commit_noted
from warmfleet_operator.desired.errors import SpecError, UnsupportedError
from warmfleet_operator.desired.model import is_fetched
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, kind_of
from warmfleet_operator.objects.rollouts import spec_hash
from warmfleet_operator.reconcile.plan import Manifest
from warmfleet_operator.replicas.number import ReplicaBounds
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.problem import Problem

_UNKNOWN_BOUNDS: Final = ReplicaBounds(0, "Active", min_replicas=0)
"""Of a spec that cannot be read: the number of replicas that there is stays."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The objects and figures that follow from a spec."""

    objects: tuple[Manifest, ...] = ()
    is_fetched: bool = True
    commit: str = ""
    """Of the model's repository on the hub; empty for other sources, and while it is not known."""
    bounds: ReplicaBounds = _UNKNOWN_BOUNDS
    policy: AutoscalingPolicy | None = None
    """By which the number of replicas is decided; None where nothing decides it."""
    spec_hash: str = ""
    """Hash of what the user wrote; it decides whether a user or a release causes a rollout."""
    problem: Problem | None = None
    """Why no objects follow from the spec; `objects` is empty then."""

    @property
    def fetch_job(self) -> str:
        """Name of the Job that fetches the model; empty where none does."""
        jobs = (manifest for manifest in self.objects if kind_of(manifest) is JOB)
        return next((str(job["metadata"]["name"]) for job in jobs), "")


def wanted_by(
    deployment: Mapping[str, Any],
    settings: OperatorSettings,
    asked: HubRevision | None = None,
    commit: str | Unresolved = "",
) -> Wanted:
    """What a ModelDeployment of the API server asks for, or the problem with its spec.

    Args:
        deployment: the ModelDeployment.
        settings: the operator's.
        asked: its branch or tag on the hub; None where it has none.
        commit: what that was resolved to.
    """
    try:
        checked = CheckedDeployment.from_object(deployment)
    except ManifestError as error:
        return Wanted(problem=Problem(Reason.INVALID_SPEC, str(error)))
    written = checked.written_spec()
    without_objects = Wanted(
        is_fetched=is_fetched(checked), bounds=ReplicaBounds.of(checked.spec), policy=_policy(checked)
    )
    if isinstance(commit, Unresolved):
        return replace(without_objects, problem=Problem(commit.reason, commit.message))
    if asked is not None:
        checked = checked.at_commit(commit)
    try:
        objects = desired_objects(checked, settings)
    except UnsupportedError as error:
        return replace(without_objects, problem=Problem(Reason.UNSUPPORTED_SPEC, str(error)))
    except SpecError as error:
        return replace(without_objects, problem=Problem(Reason.INVALID_SPEC, str(error)))
    if asked is not None:
        objects = tuple(
            with_commit_noted(manifest, asked, commit) if kind_of(manifest) is DEPLOYMENT else manifest
            for manifest in objects
        )
    hub = checked.spec.model.source.hugging_face
    return replace(
        without_objects,
        objects=objects,
        commit="" if hub is None else hub.asked_revision,
        spec_hash=spec_hash(written),
    )


def _policy(checked: CheckedDeployment) -> AutoscalingPolicy | None:
    scaling = checked.spec.autoscaling
    if scaling is None or scaling.mode == "Paused" or checked.spec.suspend:
        return None
    return AutoscalingPolicy.of(scaling)
