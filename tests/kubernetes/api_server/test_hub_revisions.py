"""A model at a branch: a real API server, an operator of its own, and a hub on a local port."""

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmfleet_contracts.names import RESOLVED_ANNOTATION
from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import eventually, running_operator
from warmfleet_testing.documents.documents import REPOSITORY, commands
from warmfleet_testing.engine.fake_hub import REVISION, FakeHub, running_hub
from warmfleet_testing.resources.chart_render import render

MOVED = "f" * 40
PAGE = (REPOSITORY / "docs" / "how-to" / "private-models.md").read_text()
GRANTS = [command for command in commands(PAGE) if command.startswith("kubectl create role")]
TOKEN = "hf_" + "planted" * 4


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Iterator[ModelNamespace]:
    with model_namespace(control_plane, "hub-revisions") as namespace:
        yield namespace


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as running:
        running.branches = {"main": REVISION}
        yield running


def model(**hub: Any) -> dict[str, Any]:
    return {"source": {"huggingFace": {"repository": "acme/tiny", **hub}}}


def commit(fleet: ModelNamespace, name: str) -> str:
    """What the pods fetch; empty before there is a Deployment."""
    workers = fleet.children(name).get("Deployment")
    if workers is None:
        return ""
    (fetch,) = workers["spec"]["template"]["spec"]["initContainers"]
    found: str = fetch["args"][fetch["args"].index("--revision") + 1]
    return found


def test_a_branch_is_resolved_once_for_all_lives_of_the_operator(fleet: ModelNamespace, hub: FakeHub) -> None:
    hub.silent = threading.Event()
    with running_operator(fleet.plane, fleet.namespace, "--hub-endpoint", hub.url) as operator:
        operator.wait_until_leading()
        fleet.apply("branch", model=model())
        wait_for_conditions(
            fleet, "branch", Ready="False ResolvingRevision", Reconciling="True ResolvingRevision"
        )
        assert commit(fleet, "branch") == ""
        hub.silent.set()
        fleet.settled("branch")
        resource = fleet.get("modeldeployment", "branch")
        assert resource["status"]["model"] == {"revision": REVISION, "resolvedFrom": "acme/tiny@main"}
        annotations = fleet.children("branch")["Deployment"]["metadata"]["annotations"]
        assert annotations[RESOLVED_ANNOTATION] == f"acme/tiny@main {REVISION}"
        assert operator.stop() == 0

    hub.branches["main"] = MOVED
    with running_operator(fleet.plane, fleet.namespace, "--hub-endpoint", hub.url) as operator:
        operator.wait_until_leading()
        fleet.apply("branch", model=model(), replicas=3)
        eventually(lambda: fleet.children("branch")["Deployment"]["spec"]["replicas"] == 3)
        fleet.delete("deployment", "branch")
        eventually(lambda: commit(fleet, "branch"))
        assert commit(fleet, "branch") == REVISION
        assert len(hub.questions()) == 1

        template = fleet.children("branch")["Deployment"]["spec"]["template"]
        fleet.apply("branch", model=model(revision=REVISION), replicas=3)  # what runs, written down
        eventually(
            lambda: fleet.get("modeldeployment", "branch")["status"]["model"] == {"revision": REVISION}
        )
        assert fleet.children("branch")["Deployment"]["spec"]["template"] == template


def test_what_the_hub_refuses_or_does_not_answer_is_reported(fleet: ModelNamespace, hub: FakeHub) -> None:
    secret = {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "hub"},
        "stringData": {"token": TOKEN},
    }
    fleet.kubectl("apply", "-f", "-", input=str(secret).replace("'", '"'))
    with running_operator(fleet.plane, fleet.namespace, "--hub-endpoint", hub.url) as operator:
        operator.wait_until_leading()
        fleet.apply("wrong", model=model(revision="typo"))
        messages = wait_for_conditions(
            fleet, "wrong", Ready="False RevisionUnresolved", Stalled="True RevisionUnresolved"
        )
        assert "acme/tiny has no branch, tag or commit typo (404)" in messages["Stalled"]

        hub.failures = [503]
        fleet.apply("wrong", model=model(revision="v2"))
        messages = wait_for_conditions(
            fleet, "wrong", Ready="False HubUnreachable", Stalled="True HubUnreachable"
        )
        assert messages["Ready"] == f"{hub.url} answered 503"
        assert fleet.children("wrong") == {}

        hub.token = TOKEN
        fleet.apply("private", model=model(tokenSecretRef={"name": "hub", "key": "token"}))
        fleet.settled("private")
        assert commit(fleet, "private") == REVISION
        assert [seen.token for seen in hub.questions()[-2:]] == ["", f"Bearer {TOKEN}"]
        assert TOKEN not in operator.log_path.read_text()


def test_a_private_repository_needs_the_right_to_one_secret_and_gets_it_as_documented(
    fleet: ModelNamespace, hub: FakeHub, tmp_path: Path
) -> None:
    """Under the chart's own roles: they let the operator read no Secret of a user."""
    fleet.kubectl("create", "secret", "generic", "hugging-face", f"--from-literal=token={TOKEN}")
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    made = [item for item in render(namespace=fleet.namespace).objects if item["kind"] in kinds]
    account = ("--kubeconfig", str(fleet.operator_kubeconfig(made, tmp_path)))
    hub.token = TOKEN
    with running_operator(fleet.plane, fleet.namespace, "--hub-endpoint", hub.url, *account) as operator:
        operator.wait_until_leading()
        fleet.apply("granted", model=model(tokenSecretRef={"name": "hugging-face", "key": "token"}))
        messages = wait_for_conditions(fleet, "granted", Stalled="True RevisionUnresolved")
        assert f"may not read Secret {fleet.namespace}/hugging-face" in messages["Stalled"]

        assert len(GRANTS) == 2
        for grant in GRANTS:
            command = shlex.split(
                grant.replace("RELEASE_NAMESPACE", fleet.namespace).replace("models", fleet.namespace)
            )
            fleet.plane.kubectl(*command[1:])
        eventually(lambda: commit(fleet, "granted") == REVISION)
        assert TOKEN not in operator.log_path.read_text()
