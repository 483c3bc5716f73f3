"""The commit of a branch: which revisions move, where the commit is kept, and what follows from it."""

from typing import Any

import pytest

from warmfleet_contracts.names import RESOLVED_ANNOTATION
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.desired.commits import HubRevision, Unresolved, known_commit, moving_revision
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, kind_of
from warmfleet_operator.objects.rollouts import template_revision
from warmfleet_operator.reconcile.wanted import Wanted, wanted_by
from warmfleet_operator.replicas.number import ReplicaBounds
from warmfleet_testing.resources.desired_specs import SETTINGS, manifest

COMMIT, OTHER = "a" * 40, "b" * 40
MAIN = HubRevision("acme/tiny", "main", "models")
CACHE = {"persistentVolumeClaim": {"claimName": "cache"}}


def spec(*, cached: bool = False, **hub: Any) -> dict[str, Any]:
    source = {"huggingFace": {"repository": "acme/tiny", **hub}}
    model = {"source": source, "cache": CACHE} if cached else {"source": source}
    return {"model": model, "kvCache": {"size": "64Mi"}}


def wanted(commit: str, *, cached: bool = False, **hub: Any) -> Wanted:
    body = manifest(spec(cached=cached, **hub), namespace="models")
    return wanted_by(body, SETTINGS, moving_revision(body), commit)


def workers_of(found: Wanted) -> dict[str, Any]:
    (workers,) = [dict(item) for item in found.objects if kind_of(item) is DEPLOYMENT]
    return workers


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (spec(), MAIN),
        (spec(revision="main"), MAIN),
        (spec(revision="v2"), HubRevision("acme/tiny", "v2", "models")),
        (
            spec(tokenSecretRef={"name": "hub", "key": "token"}),
            HubRevision("acme/tiny", "main", "models", "hub", "token"),
        ),
        (spec(revision=COMMIT), None),
        (spec(revision="a b"), None),
        ({"model": {"source": {"catalog": {"name": "c"}}}}, None),
        ({"model": None}, None),
    ],
)
def test_only_branches_and_tags_of_a_valid_spec_are_asked_for(
    body: dict[str, Any], asked: HubRevision | None
) -> None:
    assert moving_revision(manifest(body, namespace="models")) == asked


def deployment(revision: str, resolved_from: str) -> dict[str, Any]:
    return {"status": {"model": {"revision": revision, "resolvedFrom": resolved_from}}}


def noted(text: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {RESOLVED_ANNOTATION: text}}}


@pytest.mark.parametrize(
    ("resource", "workers", "commit"),
    [
        ({}, None, ""),
        ({}, {"metadata": {}}, ""),
        ({}, noted(f"acme/tiny@main {COMMIT}"), COMMIT),
        (deployment(COMMIT, "acme/tiny@main"), None, COMMIT),
        (deployment(COMMIT, "acme/tiny@main"), noted(f"acme/tiny@v1 {OTHER}"), COMMIT),
        (deployment(OTHER, "acme/tiny@main"), noted(f"acme/tiny@main {COMMIT}"), COMMIT),
        (deployment(COMMIT, "acme/tiny@v1"), noted(f"acme/other@main {COMMIT}"), ""),
        (deployment("HEAD", "acme/tiny@main"), noted("acme/tiny@main main"), ""),
        ({"status": {"model": {"revision": COMMIT}}}, noted("acme/tiny@main"), ""),
    ],
)
def test_either_the_deployment_or_the_status_is_memory_enough(
    resource: dict[str, Any], workers: dict[str, Any] | None, commit: str
) -> None:
    assert known_commit(MAIN, resource, workers) == commit


def test_pods_of_a_branch_are_those_of_its_commit() -> None:
    """So writing the commit into the spec restarts nothing; only the Deployment has where it came from."""
    branch, pinned = workers_of(wanted(COMMIT)), workers_of(wanted("", revision=COMMIT))

    assert branch["spec"] == pinned["spec"]
    assert branch["metadata"]["annotations"] == {RESOLVED_ANNOTATION: f"acme/tiny@main {COMMIT}"}
    assert "annotations" not in pinned["metadata"]
    assert known_commit(MAIN, {}, branch) == COMMIT


def test_another_commit_is_another_template_and_another_job() -> None:
    one, two = wanted(COMMIT, cached=True), wanted(OTHER, cached=True)
    jobs = [
        item["metadata"]["name"] for found in (one, two) for item in found.objects if kind_of(item) is JOB
    ]

    assert template_revision(workers_of(one)) != template_revision(workers_of(two))
    assert len(set(jobs)) == 2
    assert one.spec_hash == two.spec_hash


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"podTemplate": {"spec": {"containers": None}}}, Reason.INVALID_SPEC),
        ({"engine": {"type": "VLLM"}}, Reason.UNSUPPORTED_SPEC),
    ],
)
def test_a_spec_without_objects_goes_on_with_its_bounds_and_its_policy(wrong, reason) -> None:
    body = manifest(spec() | {"autoscaling": {"maxReplicas": 3}} | wrong, namespace="models")

    found = wanted_by(body, SETTINGS, moving_revision(body), COMMIT)

    assert (found.objects, found.bounds) == ((), ReplicaBounds(1, "Active", 1, 3))
    assert found.policy is not None
    assert found.problem is not None
    assert found.problem.reason is reason


def test_without_a_commit_nothing_is_made_and_the_policy_goes_on() -> None:
    body = manifest(spec() | {"autoscaling": {"maxReplicas": 3}}, namespace="models")
    why = Unresolved(Reason.HUB_UNREACHABLE, "no answer")

    found = wanted_by(body, SETTINGS, moving_revision(body), why)

    assert (found.objects, found.bounds.mode, found.is_fetched) == ((), "Active", True)
    assert found.policy is not None
    assert found.problem is not None
    assert (found.problem.reason, found.problem.message) == (Reason.HUB_UNREACHABLE, "no answer")
