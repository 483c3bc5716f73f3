"""What is written so that the cluster holds what is desired, and what is left alone."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.names import APPLIED_ANNOTATION, REPLICAS_ANNOTATION
from warmfleet_operator.desired.revision import with_revision
from warmfleet_operator.objects.jobs import RETRY_JOB_SECONDS, retry_job_at_seconds
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, NETWORK_POLICY, kind_of
from warmfleet_operator.objects.pods import ContainerView
from warmfleet_operator.objects.releases import release_labels
from warmfleet_operator.objects.rollouts import (
    Cause,
    annotated,
    blocking,
    cause_of,
    rollout_complete,
    spec_hash,
    upgrade_state,
)
from warmfleet_operator.reconcile.plan import Labelling, plan_changes, with_applied_digest
from warmfleet_operator.reconcile.wanted import wanted_by
from warmfleet_operator.settings import Release
from warmfleet_testing.resources.desired_specs import (
    FULL,
    GPU_FROM_THE_HUB_ON_A_CLAIM,
    MINIMAL,
    SETTINGS,
    desired,
    manifest,
    specs,
)
from warmfleet_testing.resources.observations import job, pod, workers


def wanted(spec):
    return list(desired(spec).values())


def there(manifests):
    """As the API server would have them."""
    copies = [copy.deepcopy(with_applied_digest(item)) for item in manifests]
    for number, item in enumerate(copies):
        item["metadata"] |= {"uid": f"child-{number}", "resourceVersion": "1"}
    return copies


def owner(manifests) -> str:
    return manifests[0]["metadata"]["ownerReferences"][0]["uid"]


@given(specs())
@settings(max_examples=40)
def test_nothing_is_written_when_all_is_there(spec) -> None:
    objects = wanted(spec)

    plan = plan_changes(objects, there(objects), owner(objects))

    assert not plan
    assert not plan.conflicts


@given(specs(), st.data())
@settings(max_examples=40)
def test_applied_twice_is_applied_once(spec, data) -> None:
    objects = wanted(spec)
    some = data.draw(st.lists(st.sampled_from(range(len(objects))), unique=True))
    present = there([objects[index] for index in some])

    first = plan_changes(objects, present, owner(objects))
    second = plan_changes(objects, present + there(first.applies), owner(objects))

    assert {kind_of(item) for item in first.applies} == {
        kind_of(item) for index, item in enumerate(objects) if index not in some
    }
    assert not second


@given(specs(), specs())
@settings(max_examples=40)
def test_from_any_spec_to_any_other_in_one_plan(before, after) -> None:
    old, new = wanted(before), wanted(after)
    uid = owner(new)

    plan = plan_changes(new, there(old), uid)

    gone = {(item.kind, item.name) for item in plan.removals}
    kept = [item for item in there(old) if (kind_of(item), item["metadata"]["name"]) not in gone]
    replaced = {(kind_of(item), item["metadata"]["name"]) for item in plan.applies}
    rest = [item for item in kept if (kind_of(item), item["metadata"]["name"]) not in replaced]
    assert not plan_changes(new, rest + there(plan.applies), uid)


def test_a_field_that_is_no_longer_desired_is_removed() -> None:
    objects = wanted(FULL)
    leaner = copy.deepcopy(objects)
    deployment = next(item for item in leaner if kind_of(item) is DEPLOYMENT)
    deployment["spec"]["template"]["spec"].pop("topologySpreadConstraints")

    plan = plan_changes(leaner, there(objects), owner(objects))

    assert [kind_of(item) for item in plan.applies] == [DEPLOYMENT]


def test_an_edit_of_ours_is_put_back_and_an_addition_of_others_is_not() -> None:
    objects = wanted(MINIMAL)
    present = there(objects)
    service = next(item for item in present if item["kind"] == "Service")
    service["metadata"]["labels"]["team"] = "search"
    budget = next(item for item in present if item["kind"] == "PodDisruptionBudget")
    budget["spec"]["maxUnavailable"] = 5

    plan = plan_changes(objects, present, owner(objects))

    assert [item["kind"] for item in plan.applies] == ["PodDisruptionBudget"]


def test_what_is_no_longer_desired_is_deleted_only_if_it_is_controlled() -> None:
    objects = wanted(GPU_FROM_THE_HUB_ON_A_CLAIM)
    present = there(objects)
    stranger = copy.deepcopy(present[0])
    stranger["metadata"] |= {"name": "of-another", "ownerReferences": []}
    without = [item for item in objects if kind_of(item) is not JOB]

    plan = plan_changes(without, [*present, stranger], owner(objects))

    assert [item.kind for item in plan.removals] == [JOB]


def test_an_object_of_another_owner_is_never_changed() -> None:
    objects = wanted(MINIMAL)
    present = there(objects)
    present[0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    present[1]["metadata"]["ownerReferences"] = []

    plan = plan_changes(objects, present, owner(objects))

    assert not plan
    assert len(plan.conflicts) == 2


def test_an_object_that_is_being_deleted_is_waited_for() -> None:
    objects = wanted(MINIMAL)
    present = there(objects)
    present[2]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    plan = plan_changes(objects, present, owner(objects))

    assert not plan
    assert plan.pending


def fetching(ended: str):
    objects = wanted(GPU_FROM_THE_HUB_ON_A_CLAIM)
    present = there(objects)
    fetch = next(item for item in present if kind_of(item) is JOB)
    fetch["status"] = job(ended)["status"]
    return objects, present, fetch


@pytest.mark.parametrize("ended", ["", "Complete"])
def test_a_job_is_not_changed_when_its_image_would_be_another_today(ended) -> None:
    objects, present, fetch = fetching(ended)
    fetch["metadata"]["annotations"][APPLIED_ANNOTATION] = "of an older release"

    assert not plan_changes(objects, present, owner(objects))


def test_a_failed_fetch_is_begun_anew_after_a_while_or_when_it_would_be_another() -> None:
    objects, present, fetch = fetching("Failed")
    due = retry_job_at_seconds(fetch)
    uid = owner(objects)

    assert not plan_changes(objects, present, uid, now_seconds=due - 1)
    assert [item.kind for item in plan_changes(objects, present, uid, now_seconds=due).removals] == [JOB]
    fetch["metadata"]["annotations"][APPLIED_ANNOTATION] = "of an older release"
    early = due - RETRY_JOB_SECONDS
    assert [item.kind for item in plan_changes(objects, present, uid, now_seconds=early).removals] == [JOB]


def test_pods_that_have_to_stay_can_still_be_scaled() -> None:
    objects = wanted(MINIMAL)
    present = there(objects)
    changed = copy.deepcopy(objects)
    deployment = next(item for item in changed if kind_of(item) is DEPLOYMENT)
    deployment["spec"]["template"]["spec"]["hostNetwork"] = True
    deployment["spec"]["replicas"] = 7

    plan = plan_changes(changed, present, owner(objects), frozen=True)

    assert not plan.applies
    assert [(item.name, item.replicas) for item in plan.scalings] == [(deployment["metadata"]["name"], 7)]


def test_what_is_noted_of_a_number_is_written_though_pods_have_to_stay() -> None:
    """A fleet that is suspended while it sleeps keeps its number and loses its note."""
    objects = wanted(MINIMAL)
    noted = copy.deepcopy(objects)
    deployment = next(item for item in noted if kind_of(item) is DEPLOYMENT)
    deployment["metadata"]["annotations"] = {REPLICAS_ANNOTATION: ""}

    (scaling,) = plan_changes(noted, there(objects), owner(objects), frozen=True).scalings

    assert scaling.annotations == {REPLICAS_ANNOTATION: ""}
    assert not plan_changes(noted, there(noted), owner(objects), frozen=True)


def deployment_of(revision: str, cause: Cause | None = None, spec: str = "s"):
    manifest = workers()
    manifest["spec"]["template"]["metadata"]["labels"]["warmfleet.dev/revision"] = revision
    return annotated(manifest, cause, spec) if cause is not None else manifest


@pytest.mark.parametrize(
    ("existing", "cause"),
    [
        (None, Cause.SPEC),
        (deployment_of("old", Cause.SPEC, "s"), Cause.UPGRADE),
        (deployment_of("old", Cause.UPGRADE, "s"), Cause.UPGRADE),
        (deployment_of("old", Cause.SPEC, "before the edit"), Cause.SPEC),
        (deployment_of("new", Cause.UPGRADE, "s"), Cause.UPGRADE),
        (deployment_of("new", Cause.SPEC, "s"), Cause.SPEC),
        (deployment_of("old"), Cause.SPEC),
    ],
)
def test_what_causes_a_rollout(existing, cause) -> None:
    assert cause_of(deployment_of("new"), existing, {"s"}) is cause


def test_scaling_is_no_reason_to_roll() -> None:
    spec = {"replicas": 1, "model": {"a": 1}, "suspend": False}

    assert spec_hash(spec) == spec_hash({**spec, "replicas": 5, "suspend": True, "autoscaling": {}})
    assert spec_hash(spec) != spec_hash({**spec, "model": {"a": 2}})


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_one_upgrade_at_a_time(done) -> None:
    """In any order of reconciliations, at most one deployment is being upgraded."""
    state = dict.fromkeys(range(len(done)), "old")
    steps = 0
    while any(value != "new" for value in state.values()):
        steps += 1
        assert steps < 200
        for key in state:
            upgrades = [
                (
                    other,
                    upgrade_state(
                        {
                            **deployment_of("x", Cause.UPGRADE if value != "old" else Cause.SPEC),
                            "status": workers(ready=0 if value == "rolling" else 2)["status"],
                        }
                    ),
                )
                for other, value in state.items()
            ]
            if state[key] == "old" and blocking(key, upgrades, SETTINGS.own_releases) is None:
                state[key] = "rolling"
            assert list(state.values()).count("rolling") <= 1
        for key, value in state.items():
            if value == "rolling" and done[(key + steps) % len(done)] | (steps % 3 == 0):
                state[key] = "new"


@pytest.mark.parametrize(
    ("counts", "complete"),
    [
        ({"wanted": 2, "ready": 2}, True),
        ({"wanted": 0, "ready": 0}, True),
        ({"wanted": 2, "ready": 1}, False),
        ({"wanted": 2, "ready": 2, "updated": 1}, False),
        ({"wanted": 2, "ready": 2, "replicas": 3}, False),
    ],
)
def test_when_a_rollout_is_complete(counts, complete) -> None:
    assert rollout_complete(workers(**counts)) is complete


def test_a_rollout_that_no_controller_has_observed_is_not_complete() -> None:
    unseen = workers()
    unseen["metadata"]["generation"] = 2

    assert not rollout_complete(unseen)


def test_an_upgrade_stays_complete_when_a_pod_is_lost_later() -> None:
    available = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    rolling = available | {"reason": "ReplicaSetUpdated"}
    upgraded = annotated(workers(ready=1, conditions=(available,)), Cause.UPGRADE, "s")
    upgrading = annotated(workers(ready=1, conditions=(rolling,)), Cause.UPGRADE, "s")
    rolled_back = annotated(workers(updated=0, conditions=(available,)), Cause.UPGRADE, "s")
    not_observed = copy.deepcopy(upgraded)
    not_observed["metadata"]["generation"] = 2

    assert not upgrade_state(upgraded).upgrading
    assert upgrade_state(upgrading).upgrading
    assert upgrade_state(rolled_back).upgrading
    assert upgrade_state(not_observed).upgrading


def test_a_default_that_a_new_definition_adds_is_no_edit() -> None:
    plain = manifest(MINIMAL)
    defaulted = copy.deepcopy(plain)
    defaulted["spec"] |= {"engine": {"dtype": "Auto", "maxRunningSequences": 64}, "rollout": {"maxSurge": 1}}
    edited = copy.deepcopy(plain)
    edited["spec"]["engine"] = {"maxRunningSequences": 65}

    before, after, other = (wanted_by(item, SETTINGS).spec_hash for item in (plain, defaulted, edited))

    assert before == after
    assert before != other


def test_arguments_that_a_release_leaves_out_are_an_upgrade() -> None:
    """So that they roll one deployment at a time, and no deployment twice."""
    asked = wanted_by(manifest(MINIMAL), SETTINGS)
    now = next(item for item in asked.objects if kind_of(item) is DEPLOYMENT)
    before = annotated(copy.deepcopy(now), Cause.SPEC, asked.spec_hash)
    (container,) = before["spec"]["template"]["spec"]["containers"]
    container["args"] += ["--dtype", "Auto", "--threads", "0"]
    before["spec"]["template"] = with_revision(before["spec"]["template"])
    started = annotated(copy.deepcopy(now), Cause.UPGRADE, asked.spec_hash)

    assert cause_of(now, before, {asked.spec_hash}) is Cause.UPGRADE
    assert cause_of(now, started, {asked.spec_hash}) is Cause.UPGRADE


def test_an_upgrade_of_another_release_holds_no_slot() -> None:
    rolling = annotated(workers(ready=1), Cause.UPGRADE, "s")
    ours, theirs = copy.deepcopy(rolling), copy.deepcopy(rolling)
    ours["metadata"]["labels"] |= release_labels(SETTINGS.release)
    theirs["metadata"]["labels"] |= release_labels(Release("elsewhere", "warmfleet"))

    def blocked_by(deployment) -> str | None:
        return blocking("a", [("b", upgrade_state(deployment))], SETTINGS.own_releases)

    assert [blocked_by(item) for item in (rolling, ours, theirs)] == ["b", "b", None]


def test_a_pod_that_has_its_model_loses_the_label_of_fetching_pods() -> None:
    objects = wanted(MINIMAL)
    fetched, running = ContainerView(exit_code=0), ContainerView(running=True)
    pods = (
        pod("has-it", fetching=True, fetch=fetched),
        pod("fetches", fetching=True, fetch=running, ready=False),
        pod("failed", fetching=True, fetch=ContainerView(exit_code=1), ready=False),
        pod("stops", fetching=True, fetch=fetched, terminating=True),
        pod("lost-it-before", fetch=fetched),
    )

    plan = plan_changes(objects, there(objects), owner(objects), pods=pods)

    assert plan
    assert plan.labellings == (Labelling("has-it", "uid-has-it", fetches=False),)


def test_a_pod_of_a_template_without_the_label_gets_it_until_it_has_its_model() -> None:
    """The policy that let such pods out is replaced as soon as their deployment is upgraded."""
    objects = wanted(MINIMAL)
    pods = (
        pod("has-it", fetches=True),
        pod("waits", fetches=True, fetch=ContainerView(), phase="Pending", ready=False),
        pod("again", fetches=True, fetch=ContainerView(running=True, exit_code=0), ready=False),
        pod("failed", fetches=True, fetch=ContainerView(exit_code=1), ready=False),
        pod("stops", fetches=True, fetch=ContainerView(exit_code=1), terminating=True),
        pod("fetches-nothing", fetch=ContainerView()),
    )

    plan = plan_changes(objects, there(objects), owner(objects), pods=pods)

    assert plan.labellings == tuple(
        Labelling(name, f"uid-{name}", fetches=True) for name in ("waits", "again", "failed")
    )
    # while an upgrade waits, the policies are those of the release before, and they need no label
    assert not plan_changes(objects, there(objects), owner(objects), pods=pods, frozen=True)
    on_a_claim = wanted(GPU_FROM_THE_HUB_ON_A_CLAIM)
    assert not plan_changes(on_a_claim, there(on_a_claim), owner(on_a_claim), pods=pods)


def test_pods_that_wait_for_an_upgrade_keep_the_policies_of_their_template() -> None:
    """Those of the release before fetch without the label that the new policy selects."""
    objects = wanted(MINIMAL)
    present = there(objects)
    for item in present:
        if kind_of(item) is NETWORK_POLICY:
            item["spec"]["egress"] = [{}]
            item["metadata"]["annotations"][APPLIED_ANNOTATION] = "of the release before"

    assert not plan_changes(objects, present, owner(objects), frozen=True)
    started = plan_changes(objects, present, owner(objects))
    assert {kind_of(item) for item in started.applies} == {NETWORK_POLICY}
