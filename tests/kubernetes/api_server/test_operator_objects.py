"""The operator against a real API server: what it makes, keeps, puts back, and leaves alone."""

import time
from collections.abc import Iterator

import pytest

from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import OperatorProcess, eventually, running_operator


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Iterator[ModelNamespace]:
    with model_namespace(control_plane, "operator-objects") as made:
        yield made


@pytest.fixture(scope="module")
def operator(fleet: ModelNamespace) -> Iterator[OperatorProcess]:
    with running_operator(fleet.plane, fleet.namespace) as running:
        running.wait_until_leading()
        yield running


def test_a_deployment_gets_its_objects_its_keys_and_its_conditions(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("makes", replicas=2)

    children = fleet.settled("makes")

    assert set(children) == {
        "ServiceAccount",
        "NetworkPolicy",
        "Service",
        "PodDisruptionBudget",
        "Deployment",
    }
    uid = fleet.get("modeldeployment", "makes")["metadata"]["uid"]
    for child in children.values():
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [uid]
        assert "finalizers" not in child["metadata"]
    status = fleet.get("modeldeployment", "makes")["status"]
    assert len(status["conditions"]) == 8
    assert status["readySummary"] == "0/2"
    assert fleet.get("secret", "warmfleet-worker-key")["data"]["namespace-key"]
    assert len(fleet.get("secret", "warmfleet-root-keys")["data"]) == 3


def test_a_second_look_writes_nothing(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("still")
    fleet.settled("still")
    eventually(fleet.at_rest)  # the status follows the Deployment's
    looks = operator.metric("warmfleet_operator_reconciliations_total", result="done")
    since = time.time()

    fleet.touch("still")
    eventually(lambda: operator.metric("warmfleet_operator_reconciliations_total", result="done") > looks)
    time.sleep(1.0)

    assert fleet.writes(since) == []


def test_a_users_label_on_a_child_survives(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("labelled")
    fleet.settled("labelled")

    fleet.merge("service", "labelled", {"metadata": {"labels": {"team": "search"}}})
    fleet.apply("labelled", replicas=2)
    eventually(lambda: fleet.get("deployment", "labelled")["spec"]["replicas"] == 2)

    assert fleet.get("service", "labelled")["metadata"]["labels"]["team"] == "search"


def test_an_edit_of_what_the_operator_names_is_put_back(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("edited")
    fleet.settled("edited")

    fleet.scale("deployment", "edited", 5)

    eventually(lambda: fleet.get("deployment", "edited")["spec"]["replicas"] == 1)


@pytest.mark.parametrize("kind", ["service", "deployment", "poddisruptionbudget", "networkpolicy"])
def test_a_deleted_child_comes_back(fleet: ModelNamespace, operator: OperatorProcess, kind: str) -> None:
    fleet.apply("robbed")
    fleet.settled("robbed")
    before = fleet.get(kind, "robbed")["metadata"]["uid"]

    fleet.delete(kind, "robbed")

    eventually(lambda: fleet.get(kind, "robbed")["metadata"]["uid"] != before)


def test_a_users_scale_moves_the_fleet_and_the_status(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("scaled")
    fleet.settled("scaled")

    fleet.kubectl("scale", "modeldeployment", "scaled", "--replicas=3")

    eventually(lambda: fleet.get("deployment", "scaled")["spec"]["replicas"] == 3)
    eventually(lambda: fleet.get("modeldeployment", "scaled")["status"]["readySummary"] == "0/3")


def test_a_suspended_deployment_has_no_replicas_and_reports_it(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("asleep", suspend=True)

    eventually(lambda: fleet.has("asleep", "Ready", "True", "Suspended"))

    assert fleet.get("deployment", "asleep")["spec"]["replicas"] == 0
    assert fleet.has("asleep", "Stalled", "False")
    fleet.apply("asleep", suspend=False)
    eventually(lambda: fleet.get("deployment", "asleep")["spec"]["replicas"] == 1)


def test_a_deleted_deployment_takes_its_objects_along(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("passing")
    fleet.settled("passing")

    fleet.delete("modeldeployment", "passing")

    # The garbage collector learns of a new kind every 30 seconds, and the cluster may be young.
    eventually(lambda: not fleet.children("passing"), 90)


def test_a_refused_object_stalls_its_deployment_and_no_other(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("refused", podTemplate={"spec": {"containers": [{"name": "sidecar"}]}})
    fleet.apply("beside-it")

    fleet.settled("beside-it")
    stalled = eventually(lambda: fleet.has("refused", "Stalled", "True", "ObjectRefused"))

    assert "containers[1].image" in stalled["message"]
    assert "Deployment" not in fleet.children("refused")
    assert "Service" in fleet.children("refused")
    fleet.apply("refused")
    eventually(lambda: fleet.has("refused", "Stalled", "False"))
    fleet.settled("refused")


def test_a_spec_that_this_release_does_not_support_is_reported(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("unsupported", accelerator={"count": 2})

    stalled = eventually(lambda: fleet.has("unsupported", "Stalled", "True", "UnsupportedSpec"))

    assert "spec.accelerator.count" in stalled["message"]


def test_a_foreign_object_of_the_same_name_is_not_changed(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.kubectl("create", "service", "clusterip", "foreign", "--tcp=80")
    before = fleet.get("service", "foreign")["metadata"]["resourceVersion"]

    fleet.apply("foreign")
    stalled = eventually(lambda: fleet.has("foreign", "Stalled", "True", "ObjectConflict"))

    assert "Service foreign" in stalled["message"]
    assert fleet.get("service", "foreign")["metadata"]["resourceVersion"] == before
    fleet.delete("service", "foreign")
    fleet.touch("foreign")
    eventually(lambda: fleet.has("foreign", "Stalled", "False"))


def test_a_name_belongs_to_the_older_deployment_until_it_goes(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    source = {"catalog": {"name": "smollm2-135m-instruct"}}
    fleet.apply("older", model={"servedNames": ["shared"], "source": source})
    time.sleep(1.1)  # creation times are whole seconds
    fleet.apply("younger", model={"servedNames": ["shared"], "source": source})

    taken = eventually(lambda: fleet.has("younger", "NameAccepted", "False", "NameTaken"))
    assert f"{fleet.namespace}/older" in taken["message"]
    assert eventually(lambda: fleet.has("older", "NameAccepted", "True"))

    fleet.delete("modeldeployment", "older")
    eventually(lambda: fleet.has("younger", "NameAccepted", "True"))


def test_a_live_deployment_gets_a_free_name_at_once_and_waits_for_one_that_is_taken(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    def claims(name: str) -> dict[str, str]:
        recorded = fleet.get("modeldeployment", name).get("status", {}).get("nameClaims", [])
        return {claim["name"]: claim["since"] for claim in recorded}

    def serve(name: str, *names: str) -> None:
        source = {"catalog": {"name": "smollm2-135m-instruct"}}
        fleet.apply(name, model={"servedNames": list(names), "source": source})

    serve("grows", "first")
    eventually(lambda: claims("grows"))
    created = fleet.get("modeldeployment", "grows")["metadata"]["creationTimestamp"]
    time.sleep(1.1)  # times are whole seconds
    serve("has-it", "wanted")
    eventually(lambda: claims("has-it"))
    time.sleep(1.1)

    serve("grows", "wanted", "free", "first")
    eventually(lambda: len(claims("grows")) == 3)

    grown = claims("grows")
    assert grown["first"] == created
    assert grown["free"] == grown["wanted"] > claims("has-it")["wanted"]
    taken = eventually(lambda: fleet.has("grows", "NameAccepted", "False", "NameTaken"))
    assert taken["message"].startswith(f"wanted belongs to {fleet.namespace}/has-it")
    assert fleet.has("has-it", "NameAccepted", "True")
    fleet.delete("modeldeployment", "has-it")
    eventually(lambda: fleet.has("grows", "NameAccepted", "True"))
    assert claims("grows") == grown
    # The event of a change is written after the status that has it.
    eventually(lambda: any(item["note"].startswith("NameAccepted is True") for item in fleet.events("grows")))
    # In any order of the list, nothing is left to write.
    since = time.time()
    fleet.touch("grows")
    time.sleep(1.0)
    assert fleet.writes(since) == []


def test_kubectl_waits_for_conditions(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("waited-for")

    fleet.kubectl("wait", "--for=condition=NameAccepted", "modeldeployment/waited-for", "--timeout=20s")
    shown = fleet.kubectl("get", "mdep", "waited-for", "--no-headers")

    # Model, by the default of its served name, and Ready.
    assert shown.split()[:3] == ["waited-for", "waited-for", "0/1"]


def test_trouble_becomes_an_event(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("eventful", accelerator={"count": 2})

    reasons = eventually(lambda: [item["reason"] for item in fleet.events("eventful")])
    assert reasons == ["UnsupportedSpec"]
    assert "UnsupportedSpec" in fleet.kubectl("describe", "modeldeployment", "eventful")


def test_metrics_and_probes_speak_for_the_process(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("measured")
    fleet.settled("measured")

    assert operator.get("/livez").status_code == 200
    assert operator.metric("warmfleet_operator_leader") == 1
    assert operator.metric("warmfleet_operator_writes_total", kind="Service", verb="apply") > 0
    assert operator.metric("warmfleet_operator_objects", kind="ModelDeployment") > 0
    assert operator.metric("process_resident_memory_bytes") < 150 * 2**20
