"""Operators that start, stop, die, hang and come back: nothing is written twice, and never by two."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import OperatorProcess, eventually, running_operator

QUICK = ("--lease-duration-seconds=3", "--lease-renew-seconds=2", "--lease-retry-seconds=0.3")
PATIENT = ("--lease-duration-seconds=60", "--lease-renew-seconds=40", "--lease-retry-seconds=0.3")
NEXT_RELEASE = ("--worker-cpu-image=registry.invalid/warmfleet-worker:next",)


@pytest.fixture
def fleet(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[ModelNamespace]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    with model_namespace(control_plane, name) as made:
        yield made


def settled(fleet: ModelNamespace, *names: str) -> None:
    for name in names:
        fleet.settled(name)
    eventually(fleet.at_rest)  # statuses follow the Deployments'


def images(fleet: ModelNamespace) -> dict[str, str]:
    items = fleet.items("deployments")
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[
            2
        ]
        for item in items
    }


def policies(fleet: ModelNamespace) -> list[str]:
    return [item["metadata"]["name"] for item in fleet.items("networkpolicies")]


def test_a_restart_writes_nothing(fleet: ModelNamespace) -> None:
    with running_operator(fleet.plane, fleet.namespace) as first:
        fleet.apply("a", replicas=2)
        fleet.apply("b", model={"source": {"image": {"reference": "registry.invalid/model:1"}}})
        settled(fleet, "a", "b")
        assert first.stop() == 0
    since = time.time()

    with running_operator(fleet.plane, fleet.namespace, "--resync-seconds=1") as second:
        second.wait_until_leading()
        eventually(lambda: second.metric("warmfleet_operator_reconciliations_total", result="done") >= 6)

    assert fleet.writes(since) == []


def test_what_happened_while_no_operator_ran_is_made_good(fleet: ModelNamespace) -> None:
    with running_operator(fleet.plane, fleet.namespace):
        fleet.apply("a")
        fleet.apply("gone")
        settled(fleet, "a", "gone")

    fleet.apply("a", replicas=4)
    fleet.delete("service", "a")
    fleet.delete("modeldeployment", "gone")
    fleet.apply("new")

    with running_operator(fleet.plane, fleet.namespace):
        eventually(lambda: fleet.get("deployment", "a")["spec"]["replicas"] == 4)
        settled(fleet, "a", "new")


def test_a_leader_that_stops_hands_over_at_once(fleet: ModelNamespace) -> None:
    with ExitStack() as stack:
        first, second = pair(stack, fleet, *PATIENT)

        assert first.stop() == 0
        second.wait_until_leading()  # in half the time that the lease would have taken to expire

        fleet.apply("a")
        fleet.settled("a")


def test_a_killed_leader_is_succeeded_and_its_work_finished(fleet: ModelNamespace) -> None:
    with ExitStack() as stack:
        first, second = pair(stack, fleet)
        for name in ("a", "b", "c"):
            fleet.apply(name)
        first.process.send_signal(signal.SIGKILL)

        second.wait_until_leading()

        for name in ("a", "b", "c"):
            fleet.settled(name)


def test_a_leader_that_was_stopped_and_resumed_never_writes_beside_its_successor(
    fleet: ModelNamespace,
) -> None:
    with ExitStack() as stack:
        first, second = pair(stack, fleet, "--resync-seconds=0.2")
        names = [f"m{number}" for number in range(6)]
        for name in names:
            fleet.apply(name)
        since = time.time()
        first.process.send_signal(signal.SIGSTOP)  # in the middle of its work
        second.wait_until_leading()
        taken = fleet.takeovers(since, "operator-1")[-1].unix_seconds
        for name in names:
            fleet.apply(name, replicas=3)

        first.process.send_signal(signal.SIGCONT)
        time.sleep(2.0)

        assert fleet.writes(taken, "operator-0") == []
        assert eventually(lambda: fleet.writes(taken, "operator-1"))
        assert eventually(lambda: first.get("/readyz").json()["status"] == "standing by")
        assert first.process.poll() is None
        for name in names:
            fleet.settled(name)


def test_a_new_release_rolls_one_deployment_at_a_time(fleet: ModelNamespace) -> None:
    names = ["a", "b", "c"]
    with running_operator(fleet.plane, fleet.namespace):
        for name in names:
            fleet.apply(name)
        settled(fleet, *names)

    with running_operator(fleet.plane, fleet.namespace, *NEXT_RELEASE) as upgraded:
        upgraded.wait_until_leading()
        # There are no nodes: a rollout begins and never ends.
        waiting = eventually(
            lambda: (
                [name for name in names if fleet.has(name, "Reconciling", "True", "WaitingForUpgradeSlot")][
                    1:
                ]
                and names
            )
        )
        assert sorted(images(fleet).values()) == ["next", "test", "test"]
        rolling = next(name for name, image in images(fleet).items() if image == "next")
        scaled, edited = (name for name in waiting if name != rolling)
        assert fleet.has(scaled, "Ready", "False", "WaitingForUpgradeSlot")

        fleet.scale("modeldeployment", scaled, 3)
        eventually(lambda: fleet.get("deployment", scaled)["spec"]["replicas"] == 3)
        assert images(fleet)[scaled] == "test"

        fleet.apply(edited, engine={"maxRunningSequences": 8})
        eventually(lambda: images(fleet)[edited] == "next")

        fleet.merge("modeldeployment", rolling, {"spec": {"suspend": True}})
        eventually(lambda: images(fleet)[scaled] == "next")


def test_policies_that_are_turned_off_are_deleted(fleet: ModelNamespace) -> None:
    with running_operator(fleet.plane, fleet.namespace):
        fleet.apply("a")
        settled(fleet, "a")
    fleet.kubectl("create", "-f", "-", input=FOREIGN_POLICY)

    with running_operator(fleet.plane, fleet.namespace, "--no-network-policies"):
        eventually(lambda: policies(fleet) == ["foreign"])
        time.sleep(0.5)

    assert policies(fleet) == ["foreign"]


def test_keys_are_made_once_never_changed_and_made_again_when_they_are_gone(fleet: ModelNamespace) -> None:
    fleet.kubectl(
        "create",
        "secret",
        "generic",
        "warmfleet-root-keys",
        f"--from-literal=worker-token-root={'ab' * 32}",
        f"--from-literal=salt-key={'cd' * 32}",
        f"--from-literal=operator-token={'ef' * 32}",
    )
    before = fleet.get("secret", "warmfleet-root-keys")

    with running_operator(fleet.plane, fleet.namespace, "--resync-seconds=0.5"):
        fleet.apply("a")
        settled(fleet, "a")
        key = fleet.get("secret", "warmfleet-worker-key")["data"]
        fleet.delete("secret", "warmfleet-worker-key")
        again = eventually(lambda: fleet.get("secret", "warmfleet-worker-key")["data"])

    assert again == key
    assert fleet.get("secret", "warmfleet-root-keys") == before


def test_lost_root_keys_are_reported_and_not_replaced_while_a_namespace_has_a_key(
    fleet: ModelNamespace,
) -> None:
    with running_operator(fleet.plane, fleet.namespace, "--resync-seconds=0.5"):
        fleet.apply("a")
        settled(fleet, "a")
        root = fleet.get("secret", "warmfleet-root-keys")
        fleet.delete("secret", "warmfleet-root-keys")
        stalled = eventually(lambda: fleet.has("a", "Stalled", "True", "ConfigurationMissing"))
        notes = eventually(
            lambda: [item["note"] for item in fleet.items("events") if "warmfleet-root-keys" in item["note"]]
        )
        with pytest.raises(LookupError):
            fleet.get("secret", "warmfleet-root-keys")
        restored = {**root, "metadata": {"name": "warmfleet-root-keys"}}
        fleet.kubectl("create", "-f", "-", input=json.dumps(restored))
        eventually(lambda: fleet.has("a", "Stalled", "False"))

    for text in (stalled["message"], notes[0]):
        assert f"Secret {fleet.namespace}/warmfleet-root-keys" in text
        assert "Restore it from a backup" in text
        assert "delete Secret warmfleet-worker-key" in text
    assert fleet.get("secret", "warmfleet-root-keys")["data"] == root["data"]


def test_a_missing_secret_that_the_user_owns_is_reported(fleet: ModelNamespace) -> None:
    with running_operator(fleet.plane, fleet.namespace, "--no-create-root-secret"):
        fleet.apply("a")
        stalled = eventually(lambda: fleet.has("a", "Stalled", "True", "ConfigurationMissing"))

        assert "warmfleet-root-keys" in stalled["message"]
        assert "Deployment" not in fleet.children("a")


def pair(stack: ExitStack, fleet: ModelNamespace, *flags: str) -> tuple[OperatorProcess, OperatorProcess]:
    """A leader and its standby."""
    running = []
    for number in range(2):
        operator = stack.enter_context(
            running_operator(fleet.plane, fleet.namespace, *QUICK, *flags, name=f"operator-{number}")
        )
        operator.wait_until_ready()
        if number == 0:
            operator.wait_until_leading()
        running.append(operator)
    assert running[1].get("/readyz").json()["status"] == "standing by"
    return running[0], running[1]


FOREIGN_POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: foreign, labels: {warmfleet.dev/model-deployment: a}}
spec: {podSelector: {}, policyTypes: [Ingress]}
"""
