"""What has to be written so that the cluster holds what is desired. Pure: the same input, the same plan."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import APPLIED_ANNOTATION
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, Kind, kind_of
from warmfleet_operator.objects.rollouts import digest
from warmfleet_operator.objects.times import seconds_of
from warmfleet_operator.reconcile.field_ownership import covers

RETRY_JOB_SECONDS: Final = 300.0
"""After its own tries are used up, a fetch is begun anew this much later: hubs come back."""

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """An object to be deleted; exactly this one."""

    kind: Kind
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """A Deployment whose number of replicas changes while its pods have to stay as they are."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Apply:
    """An object to be made or changed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that has a name of ours and is somebody else's."""

    why: str


@dataclass(frozen=True, slots=True)
class Pending:
    """An object that has to be gone before it can be made."""

    name: str


Step = Apply | Removal | Scaling | Conflict | Pending


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes, in order: removals, then applies."""

    applies: tuple[Manifest, ...] = ()
    removals: tuple[Removal, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Objects of ours that exist and are somebody else's, in words."""
    pending: tuple[str, ...] = ()
    """Objects whose old self has to go first."""

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.applies or self.removals or self.scalings)


def plan_changes(
    desired: Iterable[Manifest],
    observed: Iterable[Manifest],
    owner_uid: str,
    *,
    now_seconds: float = 0.0,
    frozen: bool = False,
) -> Plan:
    """Compare what is wanted with what is there.

    Args:
        desired: all objects of one ModelDeployment.
        observed: the objects that carry its label, whoever made them.
        owner_uid: uid of the ModelDeployment; only what it controls is changed or deleted.
        now_seconds: since the epoch; a fetch that has failed is tried again when its time has come.
        frozen: its pods have to stay as they are for now; their number may change.
    """
    present = {(kind_of(manifest), manifest["metadata"]["name"]): manifest for manifest in observed}
    steps: list[Step] = []
    wanted: set[tuple[Kind, str]] = set()
    for manifest in map(stamped, desired):
        identity = kind_of(manifest), manifest["metadata"]["name"]
        wanted.add(identity)
        current = present.get(identity)
        if current is None:
            steps.append(Apply(manifest))
        elif not controlled_by(current, owner_uid):
            steps.append(Conflict(foreign(current)))
        else:
            steps += _changes(manifest, current, now_seconds, frozen=frozen)
    for identity, current in present.items():
        gone = "deletionTimestamp" in current["metadata"]
        if identity not in wanted and not gone and controlled_by(current, owner_uid):
            steps.append(_removal(current, "is no longer wanted"))
    return Plan(
        applies=tuple(step.manifest for step in steps if isinstance(step, Apply)),
        removals=tuple(step for step in steps if isinstance(step, Removal)),
        scalings=tuple(step for step in steps if isinstance(step, Scaling)),
        conflicts=tuple(step.why for step in steps if isinstance(step, Conflict)),
        pending=tuple(step.name for step in steps if isinstance(step, Pending)),
    )


def _changes(manifest: Manifest, current: Manifest, now_seconds: float, *, frozen: bool) -> Iterator[Step]:
    """What has to happen to an object of ours that is there."""
    kind, name = kind_of(manifest), manifest["metadata"]["name"]
    if "deletionTimestamp" in current["metadata"]:
        yield Pending(f"{kind.name} {name}")
    elif kind is JOB:
        if not _job_may_stay(manifest, current, now_seconds):
            yield _removal(current, "is made anew")
    elif kind is DEPLOYMENT and frozen:
        replicas = manifest["spec"]["replicas"]
        if current["spec"].get("replicas") != replicas:
            yield Scaling(name, replicas)
    elif not in_force(manifest, current):
        yield Apply(manifest)


def _removal(current: Manifest, why: str) -> Removal:
    metadata = current["metadata"]
    return Removal(kind_of(current), metadata["name"], metadata["uid"], why)


def stamped(manifest: Manifest) -> dict[str, Any]:
    """The manifest with a digest of itself as annotation."""
    metadata = manifest["metadata"]
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name != APPLIED_ANNOTATION
    }
    plain = {**metadata, "annotations": annotations}
    stamp = digest({**manifest, "metadata": plain})
    return {**manifest, "metadata": {**plain, "annotations": {**annotations, APPLIED_ANNOTATION: stamp}}}


def in_force(manifest: Manifest, current: Manifest) -> bool:
    """Whether exactly this manifest was applied last, and nobody has changed what it names since.

    The digest alone would miss an edit, the comparison alone a field that is no longer wanted.
    """
    applied = (current["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION)
    return bool(applied == manifest["metadata"]["annotations"][APPLIED_ANNOTATION]) and covers(
        manifest, current
    )


def controlled_by(manifest: Manifest, owner_uid: str) -> bool:
    """Whether the object's controller is this ModelDeployment, and not another of the same name."""
    references = manifest["metadata"].get("ownerReferences") or ()
    return any(reference.get("controller") and reference["uid"] == owner_uid for reference in references)


def foreign(current: Manifest) -> str:
    """Why an object is not ours, in words."""
    name = f"{current['kind']} {current['metadata']['name']}"
    references = current["metadata"].get("ownerReferences") or ()
    controller = next((reference for reference in references if reference.get("controller")), None)
    if controller is None:
        return f"{name} exists and was not made for this ModelDeployment"
    return f"{name} exists and belongs to {controller['kind']} {controller['name']} ({controller['uid']})"


def _job_may_stay(manifest: Manifest, current: Manifest, now_seconds: float) -> bool:
    """A Job's template cannot be changed. One that fetched the model stays, whatever it would be today."""
    if job_ended(current) != "Failed":
        return True
    annotations = current["metadata"].get("annotations") or {}
    if annotations.get(APPLIED_ANNOTATION) != manifest["metadata"]["annotations"][APPLIED_ANNOTATION]:
        return False
    return now_seconds < retry_job_at_seconds(current)


def retry_job_at_seconds(job: Manifest) -> float:
    """When a Job that has failed is made anew, since the epoch."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    failed = (condition for condition in conditions if condition["type"] == "Failed")
    return seconds_of(next(failed)["lastTransitionTime"]) + RETRY_JOB_SECONDS


def job_ended(job: Manifest) -> str:
    """Complete, Failed, or empty while it is under way."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            return str(condition["type"])
    return ""
