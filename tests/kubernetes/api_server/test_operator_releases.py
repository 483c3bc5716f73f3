"""Two releases over one namespace, against a real API server: one writes, the other reports."""

import time
from collections.abc import Iterator

import pytest

from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import OperatorProcess, eventually, running_operator

QUICK = "--resync-seconds=0.3"
BLUE = (QUICK, "--release-name=blue")
SOON = ("--lease-duration-seconds=3", "--lease-renew-seconds=2", "--lease-retry-seconds=0.3")
GREEN = (QUICK, *SOON, "--release-name=green", "--worker-cpu-image=registry.invalid/warmfleet-worker:green")


@pytest.fixture
def fleet(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[ModelNamespace]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    with model_namespace(control_plane, name) as made:
        yield made


def releases(fleet: ModelNamespace, name: str) -> set[str]:
    """Of its children."""
    return {item["metadata"]["labels"]["warmfleet.dev/release"] for item in fleet.children(name).values()}


def nothing_is_written(fleet: ModelNamespace, *operators: OperatorProcess) -> bool:
    """Both have looked at least three times more, and wrote nothing."""
    done = [looks(operator) for operator in operators]
    since = time.time()
    eventually(
        lambda: all(looks(operator) > before + 3 for operator, before in zip(operators, done, strict=True))
    )
    return fleet.writes(since) == []


def looks(operator: OperatorProcess) -> float:
    return operator.metric("warmfleet_operator_reconciliations_total", result="done")


def test_one_release_writes_and_the_other_reports_it_until_it_adopts(fleet: ModelNamespace) -> None:
    invalid = {"podTemplate": {"metadata": {"labels": {"warmfleet.dev/component": "mine"}}}}
    with running_operator(fleet.plane, fleet.namespace, *BLUE, name="blue-0") as blue:
        blue.wait_until_leading()
        fleet.apply("a")
        fleet.apply("invalid", **invalid)
        fleet.settled("a")
        eventually(lambda: fleet.has("invalid", "Stalled", "True", "InvalidSpec"))

        with running_operator(fleet.plane, fleet.namespace, *GREEN, name="green-0") as green:
            green.wait_until_leading()
            reported = eventually(lambda: fleet.has("a", "ReleaseConflict", "True", "ObjectConflict"))
            without_objects = eventually(
                lambda: fleet.has("invalid", "ReleaseConflict", "True", "ObjectConflict")
            )
            eventually(lambda: nothing_is_written(fleet, blue, green))

            assert f"Deployment a belongs to release {fleet.namespace}/blue" in reported["message"]
            assert f"Release {fleet.namespace}/green does not write it" in reported["message"]
            assert (
                f"ModelDeployment invalid belongs to release {fleet.namespace}/blue"
                in without_objects["message"]
            )
            assert releases(fleet, "a") == {"blue"}
            assert fleet.get("modeldeployment", "a")["status"]["release"] == f"{fleet.namespace}/blue"
            notes = [item["note"] for item in fleet.items("events") if item["reason"] == "ObjectConflict"]
            assert any("Deployment a belongs to release" in note for note in notes)
            assert green.stop() == 0

        adopt = f"--adopt-release={fleet.namespace}/blue"
        # The namespace's key derives from them.
        keys = "--root-secret-name=blue-root-keys"
        with running_operator(fleet.plane, fleet.namespace, *GREEN, adopt, keys, name="green-1") as green:
            eventually(lambda: releases(fleet, "a") == {"green"})
            eventually(
                lambda: (
                    f"Deployment a belongs to release {fleet.namespace}/green"
                    in fleet.condition("a", "ReleaseConflict")["message"]
                )
            )
            eventually(lambda: nothing_is_written(fleet, blue, green))

            assert fleet.get("modeldeployment", "a")["status"]["release"] == f"{fleet.namespace}/green"
