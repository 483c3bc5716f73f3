"""Computes the writes that turn existing objects into desired ones. Pure: equal input gives an equal plan."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from warmfleet_contracts.names import (
    APPLIED_ANNOTATION,
    FETCHING_LABEL,
    FIRST_REPLICAS_ANNOTATION,
    REPLICAS_ANNOTATION,
)
from warmfleet_operator.objects.digest import digest
from warmfleet_operator.objects.jobs import job_ended, retry_job_at_seconds
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, NETWORK_POLICY, Kind, kind_of
from warmfleet_operator.objects.pods import PodView
from warmfleet_operator.reconcile.field_ownership import owned_fields_match
from warmfleet_operator.replicas.victims import Marking

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """An object to delete, identified by its uid."""

    kind: Kind
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """A Deployment whose number of replicas changes while its pod template must not."""

    name: str
    replicas: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the Deployment, about its number."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """A pod that gets or loses the label by which it may leave the cluster."""

    name: str
    uid: str
    fetches: bool
    """Whether it has yet to fetch its model."""


@dataclass(frozen=True, slots=True)
class Apply:
    """An object to create or change by server-side apply."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object with the name of a desired one that this ModelDeployment does not control."""

    why: str


@dataclass(frozen=True, slots=True)
class Pending:
    """A desired object whose predecessor is still being deleted."""

    name: str


Step = Apply | Removal | Scaling | Conflict | Pending


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes, in the order markings, removals, applies, scalings, labellings, and what prevents others."""

    applies: tuple[Manifest, ...] = ()
    removals: tuple[Removal, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    labellings: tuple[Labelling, ...] = ()
    markings: tuple[Marking, ...] = ()
    conflicts: tuple[str, ...] = ()
    """A message for each object that exists and is controlled by another owner."""
    pending: tuple[str, ...] = ()
    """Names of objects whose predecessors are still being deleted."""

    def __bool__(self) -> bool:
        """Whether there is something to write."""
        return bool(self.applies or self.removals or self.scalings or self.labellings or self.markings)


def plan_changes(
    desired: Iterable[Manifest],
    existing: Iterable[Manifest],
    owner_uid: str,
    *,
    pods: Iterable[PodView] = (),
    now_seconds: float = 0.0,
    frozen: bool = False,
) -> Plan:
    """Compare desired objects with existing ones.

        plan = plan_changes(desired_objects(deployment, settings), store.children(key), deployment.uid)
        assert not plan_changes(desired, existing=desired, owner_uid=uid)  # nothing to write
        problem = await writer.carry_out(key, plan, deployment.uid)

    Args:
        desired: all objects of one ModelDeployment.
        existing: the objects that carry its label, including those of other owners.
        owner_uid: uid of the ModelDeployment; only objects that it controls are changed or deleted.
        pods: its pods.
        now_seconds: since the epoch; decides whether a failed fetch Job is due for its replacement.
        frozen: the pod template must not change now, nor the policies of its pods; the number of replicas
            may.
    """
    present = {(kind_of(manifest), manifest["metadata"]["name"]): manifest for manifest in existing}
    steps: list[Step] = []
    wanted: set[tuple[Kind, str]] = set()
    objects = [with_applied_digest(manifest) for manifest in desired]
    for manifest in objects:
        identity = kind_of(manifest), manifest["metadata"]["name"]
        wanted.add(identity)
        current = present.get(identity)
        if current is None:
            steps.append(Apply(manifest))
        elif not controlled_by(current, owner_uid):
            steps.append(Conflict(conflict_message(current)))
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
        labellings=tuple(_labellings(objects, pods, frozen=frozen)),
        conflicts=tuple(step.why for step in steps if isinstance(step, Conflict)),
        pending=tuple(step.name for step in steps if isinstance(step, Pending)),
    )


def _changes(manifest: Manifest, current: Manifest, now_seconds: float, *, frozen: bool) -> Iterator[Step]:
    """The steps for an existing object that this ModelDeployment controls."""
    kind, name = kind_of(manifest), manifest["metadata"]["name"]
    if "deletionTimestamp" in current["metadata"]:
        yield Pending(f"{kind.name} {name}")
    elif kind is JOB:
        if not _job_may_stay(manifest, current, now_seconds):
            yield _removal(current, "is replaced")
    elif kind is NETWORK_POLICY and frozen:
        return  # the pods that exist, and those that replace them, need the policies of their own template
    elif kind is DEPLOYMENT and frozen:
        replicas, noted = manifest["spec"]["replicas"], manifest["metadata"].get("annotations") or {}
        of_number = {
            key: noted[key] for key in (REPLICAS_ANNOTATION, FIRST_REPLICAS_ANNOTATION) if key in noted
        }
        known = current["metadata"].get("annotations") or {}
        if current["spec"].get("replicas") != replicas or not of_number.items() <= known.items():
            yield Scaling(name, replicas, of_number)
    elif not is_up_to_date(manifest, current):
        yield Apply(manifest)


def _labellings(objects: Iterable[Manifest], pods: Iterable[PodView], *, frozen: bool) -> Iterator[Labelling]:
    """Take the label from pods that have their model; give it to those of a template that had no label.

    An earlier template's pods, and one that fetches again after its node was restarted, could not fetch
    without it.
    """
    pods_fetch = any(
        FETCHING_LABEL in manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in objects
        if kind_of(manifest) is DEPLOYMENT
    )
    for pod in pods:
        if pod.holds_model:
            yield Labelling(pod.name, pod.uid, fetches=False)
        elif pods_fetch and pod.lacks_label and not frozen:
            yield Labelling(pod.name, pod.uid, fetches=True)


def _removal(current: Manifest, why: str) -> Removal:
    metadata = current["metadata"]
    return Removal(kind_of(current), metadata["name"], metadata["uid"], why)


def with_applied_digest(manifest: Manifest) -> dict[str, Any]:
    """The manifest with a digest of its content as an annotation."""
    metadata = manifest["metadata"]
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name != APPLIED_ANNOTATION
    }
    plain = {**metadata, "annotations": annotations}
    stamp = digest({**manifest, "metadata": plain})
    return {**manifest, "metadata": {**plain, "annotations": {**annotations, APPLIED_ANNOTATION: stamp}}}


def is_up_to_date(manifest: Manifest, current: Manifest) -> bool:
    """Whether this manifest was applied last and no field that it names was changed since.

    The digest alone would miss an edit, the comparison alone a field that is no longer desired.
    """
    applied = (current["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION)
    return bool(applied == manifest["metadata"]["annotations"][APPLIED_ANNOTATION]) and owned_fields_match(
        manifest, current
    )


def controlled_by(manifest: Manifest, owner_uid: str) -> bool:
    """Whether the object's controller is this ModelDeployment, and not another of the same name."""
    references = manifest["metadata"].get("ownerReferences") or ()
    return any(reference.get("controller") and reference["uid"] == owner_uid for reference in references)


def conflict_message(current: Manifest) -> str:
    """Names the object and its owner."""
    name = f"{current['kind']} {current['metadata']['name']}"
    references = current["metadata"].get("ownerReferences") or ()
    controller = next((reference for reference in references if reference.get("controller")), None)
    if controller is None:
        return f"{name} exists and was not made for this ModelDeployment"
    return f"{name} exists and belongs to {controller['kind']} {controller['name']} ({controller['uid']})"


def _job_may_stay(manifest: Manifest, current: Manifest, now_seconds: float) -> bool:
    """A Job's template is immutable: one that runs or has succeeded stays, even if another is desired now."""
    if job_ended(current) != "Failed":
        return True
    annotations = current["metadata"].get("annotations") or {}
    if annotations.get(APPLIED_ANNOTATION) != manifest["metadata"]["annotations"][APPLIED_ANNOTATION]:
        return False
    return now_seconds < retry_job_at_seconds(current)
