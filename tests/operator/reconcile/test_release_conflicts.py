"""Two releases that watch one namespace: one of them owns each ModelDeployment, and the other reports it."""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from warmfleet_contracts.resources.conditions import RELEASE_CONFLICT
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import MODEL_DEPLOYMENT
from warmfleet_operator.objects.releases import Owner, owner_of, release_labels
from warmfleet_operator.objects.times import time_of
from warmfleet_operator.reconcile.plan import plan_changes
from warmfleet_operator.reconcile.reconcile import adoption
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.settings import OperatorSettings, Release
from warmfleet_operator.status.status import Gauges, status_of, to_write
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_testing.resources.desired_specs import MINIMAL, SETTINGS, desired
from warmfleet_testing.resources.observations import NOW, deployment, serving

M = Key("models", "m")
BLUE, GREEN, RED = (Release("models", name) for name in ("blue", "green", "red"))
DEPLOYMENT_OF_BLUE = Owner(BLUE, "Deployment m")


def children(*owners: Release | None) -> list[dict[str, Any]]:
    """The first objects of a ModelDeployment, in the order in which they are applied, each of one release."""
    made = []
    for child, release in zip(desired(MINIMAL).values(), owners, strict=False):
        labels = release_labels(release) if release is not None else {}
        made.append({**child, "metadata": {**child["metadata"], "labels": labels}})
    return made


class Statuses:
    """The part of a cluster that statuses are written to."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.applied: list[Sequence[Mapping[str, Any]]] = []
        self.events: list[Mapping[str, Any]] = []

    async def apply_conflict(
        self, namespace: str, name: str, uid: str, conditions: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        assert (namespace, name, uid) == ("models", "m", "uid-m")
        self.applied.append(conditions)
        status = dict(self.body.get("status") or {})
        others = [item for item in status.get("conditions", ()) if item["type"] != RELEASE_CONFLICT]
        status["conditions"] = [*others, *conditions]
        version = int(self.body["metadata"]["resourceVersion"]) + 1
        metadata = {**self.body["metadata"], "resourceVersion": str(version)}
        self.body = {**self.body, "metadata": metadata, "status": status}
        return self.body

    async def record(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)


class Operators:
    """Writers of several releases over one ModelDeployment."""

    def __init__(self) -> None:
        self.cluster = Statuses({**deployment(), "status": status_of(serving())})

    async def report(self, release: Release, owner: Owner | None) -> None:
        store = Store(lambda _: None)
        store.put(entry_of(MODEL_DEPLOYMENT, self.cluster.body))
        settings = OperatorSettings(release_namespace=release.namespace, release_name=release.name)
        writer = Writer(
            cluster=self.cluster,  # type: ignore[arg-type] # a part of it
            store=store,
            metrics=OperatorMetrics(),
            settings=settings,
        )
        found = store.deployment(M)
        assert found is not None
        await writer.write_conflict(M, found, owner)

    def reports(self) -> list[str]:
        conditions = self.cluster.body["status"]["conditions"]
        return [item["message"] for item in conditions if item["type"] == RELEASE_CONFLICT]


def test_every_child_carries_its_release_and_pods_do_not() -> None:
    for child in desired(MINIMAL).values():
        assert release_labels(SETTINGS.release).items() <= child["metadata"]["labels"].items()
        template = child["spec"].get("template", {}) if "spec" in child else {}
        assert (
            not release_labels(SETTINGS.release).keys()
            & template.get("metadata", {}).get("labels", {}).keys()
        )


@pytest.mark.parametrize("owners", list(itertools.product((BLUE, GREEN, None), repeat=3)))
def test_operators_that_started_at_once_agree_on_the_owner(owners) -> None:
    """Whichever object each of them has made: the one that is applied last decides."""
    named = [release for release in owners if release is not None]
    found = owner_of(deployment(), reversed(children(*owners)))

    assert (found.release if found else None) == (named[-1] if named else None)


def test_the_deployment_of_workers_decides_and_without_objects_the_status_does() -> None:
    whole = children(*[GREEN] * 5, BLUE)
    refused = {**deployment(), "status": {"release": "models/green"}}
    from_before = {**deployment(), "status": {"observedGeneration": 0}}

    assert owner_of(refused, whole) == Owner(BLUE, "Deployment chat")
    assert owner_of(refused, []) == Owner(GREEN, "ModelDeployment m")
    assert owner_of(from_before, children(None, None)) is None


async def test_the_other_release_is_reported_once_with_the_object() -> None:
    operators = Operators()

    for _ in range(3):
        await operators.report(GREEN, DEPLOYMENT_OF_BLUE)

    (applied,) = operators.cluster.applied
    (condition,) = applied
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "ReleaseConflict",
        "True",
        "ObjectConflict",
    )
    assert condition["message"].startswith(
        "Release models/green does not write it: Deployment m belongs to release models/blue."
    )
    (event,) = operators.cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "ObjectConflict")


async def test_the_report_describes_the_newest_generation_and_is_announced_once() -> None:
    operators = Operators()
    await operators.report(GREEN, DEPLOYMENT_OF_BLUE)
    metadata = operators.cluster.body["metadata"]
    operators.cluster.body = {**operators.cluster.body, "metadata": {**metadata, "generation": 4}}

    for _ in range(2):
        await operators.report(GREEN, DEPLOYMENT_OF_BLUE)

    assert [item["observedGeneration"] for (item,) in operators.cluster.applied] == [3, 4]
    assert len(operators.cluster.events) == 1


async def test_a_report_of_another_object_has_the_time_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = Operators()
    for seconds, owner in enumerate((DEPLOYMENT_OF_BLUE, Owner(BLUE, "Service m"))):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: NOW + seconds)
        await operators.report(GREEN, owner)

    assert [item["lastTransitionTime"] for (item,) in operators.cluster.applied] == [time_of(NOW)] * 2
    assert len(operators.cluster.events) == 2


async def test_a_release_ends_its_own_report_only() -> None:
    operators = Operators()
    await operators.report(GREEN, DEPLOYMENT_OF_BLUE)
    (reported,) = operators.reports()

    await operators.report(BLUE, None)
    await operators.report(RED, DEPLOYMENT_OF_BLUE)
    await operators.report(RED, None)
    assert operators.reports() == [reported]

    await operators.report(GREEN, None)
    await operators.report(GREEN, None)
    assert operators.reports() == []
    assert len(operators.cluster.applied) == 2


def test_a_deployment_is_adopted_by_the_object_that_decides_alone() -> None:
    """The other operator would put all others back, for as long as that one is refused."""
    present = [{**child, "metadata": {**child["metadata"]}} for child in desired(MINIMAL).values()]
    uid = present[0]["metadata"]["ownerReferences"][0]["uid"]

    whole = plan_changes(desired(MINIMAL).values(), present, uid)

    assert len(whole.applies) == len(present)
    assert [item["kind"] for item in adoption(whole).applies] == ["Deployment"]
    assert not adoption(plan_changes(desired(MINIMAL).values(), present, uid, frozen=True))


def test_the_owner_writes_no_status_because_of_the_report() -> None:
    status = status_of(serving())
    report = {"type": RELEASE_CONFLICT, "status": "True", "reason": "ObjectConflict", "message": "x"}
    reported = {**status, "conditions": [*status["conditions"], report]}

    assert to_write(status, reported, Gauges(0.0), 1.0) is None
