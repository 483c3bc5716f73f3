"""What goes wrong on nodes that run: the kubelet's, the fetch's and the engine's own words reach the user.

All deployments of the module are applied at once, into one namespace: beside every kind of trouble the others
go on. Nothing here is waited for longer than the cluster takes to try.
"""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.installed import Installed, tiny_deployment
from warmfleet_testing.documents.troubleshooting_page import commands

BROKEN_IMAGE = "registry.devcluster.local/models/broken:1"
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 64Mi}}}
"""
UNKNOWN_MODEL = {"source": {"catalog": {"name": "no-such-model"}}}
OF_A_HUB = {"source": {"huggingFace": {"repository": "org/model", "revision": "0" * 40}}}
SHARED = {"servedNames": ["shared"], "source": tiny_deployment("x")["spec"]["model"]["source"]}
DEPLOYMENTS = {
    "healthy": {},
    "unpulled": {"engine": {"image": "registry.invalid/worker:1"}, "model": OF_A_HUB},
    "unfetched": {"model": UNKNOWN_MODEL},
    "unfilled": {
        "model": {**UNKNOWN_MODEL, "cache": {"persistentVolumeClaim": {"claimName": "models"}}},
    },
    "unplaced": {"resources": {"requests": {"memory": "64Ti"}}},
    "crashing": {"model": {"source": {"image": {"reference": BROKEN_IMAGE}}}},
    "unconfigured": {
        "engine": {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "key"}}}]}
    },
    "refused": {"podTemplate": {"spec": {"containers": [{"name": "sidecar"}]}}},
    "inadmissible": {"podTemplate": {"spec": {"hostNetwork": True}}},
    "younger": {"model": SHARED},
    "paused": {"autoscaling": {"mode": "Paused", "maxReplicas": 2}},
}

SUBJECTS = {
    "CrashLooping": "crashing",
    "FetchFailed": "unfilled",
    "Fetching": "unfetched",
    "ImagePullFailed": "unpulled",
    "ExternalScaler": "paused",
    "Paused": "paused",
    "RevisionUnresolved": "unpulled",
    "Unschedulable": "unplaced",
}
"""Who is in the trouble that a section speaks of; for all others the healthy one will do."""
PLACEHOLDERS = re.compile(r"\b(NAMESPACE|RELEASE_NAMESPACE|NAME|POD)\b(?!:)")


@pytest.fixture(scope="module")
def fleet(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """All of them, applied."""
    broken: Path = tmp_path_factory.mktemp("broken") / "model"
    broken.mkdir(mode=0o755)
    (broken / "config.json").write_text('{"model_type": "llama"}')
    installed.cluster.add_image(BROKEN_IMAGE, folder=str(broken))
    with installed.within("conditions-nodes") as models:
        models.kubectl("label", "namespace", models.namespace, "pod-security.kubernetes.io/enforce=baseline")
        models.kubectl("apply", "-f", "-", input=CLAIM)
        models.apply(tiny_deployment("elder", model=SHARED))
        models.wait_for("elder", "NameAccepted", "True")
        # Ages are whole seconds: of two resources of one second the uid decides which is the elder.
        created = datetime.fromisoformat(models.resource("elder")["metadata"]["creationTimestamp"])
        time.sleep(max(0.0, created.timestamp() + 1 - time.time()))
        models.apply(*(tiny_deployment(name, **spec) for name, spec in DEPLOYMENTS.items()))
        yield models


def test_a_fleet_beside_them_serves(fleet: Installed) -> None:
    wait_for_conditions(
        fleet,
        "healthy",
        seconds=180,
        Ready="True WorkersReady",
        Available="True MinimumReplicasAvailable",
        Reconciling="False RolloutComplete",
        Stalled="False NotStalled",
        ModelCached="True Provided",
        NameAccepted="True NameAccepted",
        RouterReady="True RouterServing",
        ScalingActive="False FixedReplicas",
    )
    fleet.wait_routed("healthy")
    assert fleet.chat("healthy", "hello")["usage"]["completion_tokens"] > 0


def test_an_image_that_cannot_be_pulled_is_named(fleet: Installed) -> None:
    messages = wait_for_conditions(
        fleet, "unpulled", Ready="False ImagePullFailed", Stalled="True ImagePullFailed"
    )

    assert "registry.invalid/worker:1" in messages["Stalled"]


@pytest.mark.parametrize("name", ["unfetched", "unfilled"])
def test_a_fetch_that_fails_is_reported_with_its_own_message(fleet: Installed, name: str) -> None:
    """By each pod for itself, and by a Job for the claim that they share."""

    def condition_message() -> str:
        return wait_for_conditions(
            fleet,
            name,
            Ready="False FetchFailed",
            Reconciling="False Stalled",
            Stalled="True FetchFailed",
            ModelCached="False FetchFailed",
        )["ModelCached"]

    # A Job may be known to have failed before the words of its pod are.
    message = eventually(condition_message, lambda text: "no-such-model" in text)
    assert "smollm2-135m-instruct" in message  # what there is instead


def test_a_pod_that_fits_nowhere_is_reported_with_the_schedulers_message(fleet: Installed) -> None:
    messages = wait_for_conditions(
        fleet, "unplaced", Ready="False Unschedulable", Stalled="True Unschedulable"
    )

    assert "Insufficient memory" in messages["Stalled"]


def test_an_engine_that_refuses_its_model_reports_why(fleet: Installed) -> None:
    messages = wait_for_conditions(
        fleet, "crashing", seconds=180, Ready="False CrashLooping", Stalled="True CrashLooping"
    )

    assert "cannot serve this model: tokenizer.json" in messages["Stalled"]


def test_a_missing_secret_is_named(fleet: Installed) -> None:
    messages = wait_for_conditions(
        fleet, "unconfigured", Ready="False ConfigurationMissing", Stalled="True ConfigurationMissing"
    )

    assert "absent" in messages["Stalled"]


@pytest.mark.parametrize(
    ("name", "words"), [("refused", "containers[1].image"), ("inadmissible", "host namespaces")]
)
def test_a_refused_object_is_reported_with_the_api_servers_message(
    fleet: Installed, name: str, words: str
) -> None:
    """The Deployment itself, or the pods that it wants."""
    messages = wait_for_conditions(fleet, name, Ready="False ObjectRefused", Stalled="True ObjectRefused")

    assert words in messages["Stalled"]


def test_a_taken_name_stays_the_elders_and_the_younger_is_reached_by_its_full_name(fleet: Installed) -> None:
    messages = wait_for_conditions(
        fleet,
        "younger",
        seconds=180,
        Ready="False NameTaken",
        NameAccepted="False NameTaken",
        RouterReady="True RouterServing",
    )
    fleet.wait_ready("elder")
    fleet.wait_routed("younger")

    assert f"{fleet.namespace}/elder" in messages["NameAccepted"]
    assert fleet.chat("shared", "hello")["model"] == "shared"
    assert fleet.chat(f"{fleet.namespace}/younger", "hello")["usage"]["completion_tokens"] > 0


def test_each_turn_is_one_event_however_often_it_is_looked_at(fleet: Installed) -> None:
    fleet.wait_for("healthy", "Ready", "True", seconds=180)
    fleet.kubectl("annotate", "modeldeployments", "--all", "example.com/look=1")
    engine = {**tiny_deployment("x")["spec"]["engine"], "maxRunningSequences": 8}
    fleet.apply(tiny_deployment("healthy", engine=engine))
    fleet.wait_for("healthy", "Reconciling", "True")
    fleet.wait_for("healthy", "Ready", "True", seconds=180)

    once_each = {
        "healthy": {"WorkersReady": 2, "Progressing": 1},
        "elder": {"WorkersReady": 1},
        "unpulled": {"ImagePullFailed": 1},
        "unfetched": {"FetchFailed": 1},
        "unfilled": {"FetchFailed": 1},
        "unplaced": {"Unschedulable": 1},
        "crashing": {"CrashLooping": 1},
        "unconfigured": {"ConfigurationMissing": 1},
        "refused": {"ObjectRefused": 1},
        "inadmissible": {"ObjectRefused": 1},
        "younger": {"NameTaken": 1},
        "paused": {"WorkersReady": 1},
    }
    eventually(lambda: events(fleet), once_each)  # an event follows its condition
    shown = fleet.kubectl("describe", "mdep", "healthy")
    assert shown.index("Normal") < shown.index("Progressing")
    assert "Warning" not in shown
    assert "Warning" in fleet.kubectl("describe", "mdep", "crashing")


@pytest.mark.parametrize(("heading", "line"), commands())
def test_every_command_of_the_troubleshooting_page_works(fleet: Installed, heading: str, line: str) -> None:
    name = SUBJECTS.get(heading, "healthy")
    names = {
        "NAMESPACE": fleet.namespace,
        "RELEASE_NAMESPACE": fleet.release_namespace,
        "NAME": name,
        "POD": fleet.pods(name)[0]["metadata"]["name"],
    }
    typed = [PLACEHOLDERS.sub(lambda found: names[found[0]], word) for word in shlex.split(line)[1:]]
    if typed[0] in {"patch", "scale"}:
        typed.append("--dry-run=server")

    # A container that was just started again has logged nothing yet.
    eventually(lambda: fleet.kubectl(*typed) or "podTemplate" in line or "quota" in line)


def events(fleet: Installed) -> dict[str, Counter[str]]:
    """How often each reason was reported, by deployment."""
    counts: dict[str, Counter[str]] = {}
    for event in fleet.get("events.events.k8s.io")["items"]:
        if event["regarding"]["kind"] == "ModelDeployment":
            times = event.get("series", {}).get("count", 1)
            counts.setdefault(event["regarding"]["name"], Counter())[event["reason"]] += times
    return counts
