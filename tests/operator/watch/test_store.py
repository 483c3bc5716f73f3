"""The store holds the newest state, in any order of events."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_operator.cluster import Listed
from warmfleet_operator.metrics import MAX_DEPLOYMENTS, OperatorMetrics
from warmfleet_operator.objects.deployment_state import DeploymentState
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, POD, SECRET, WATCHED
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_testing.resources.metrics_page import metrics_page
from warmfleet_testing.resources.observations import deployment, workers

M = Key("models", "m")


def body(version: int, uid: str = "uid-m", name: str = "m", **spec):
    made = deployment(name, **spec)
    made["metadata"] |= {"resourceVersion": str(version), "uid": uid, "managedFields": [{"x": 1}]}
    return made


def store() -> tuple[Store, list[Key]]:
    changed: list[Key] = []
    return Store(changed.append), changed


def test_an_older_event_changes_nothing() -> None:
    kept, _ = store()
    kept.put(entry_of(MODEL_DEPLOYMENT, body(5, replicas=5)))
    kept.put(entry_of(MODEL_DEPLOYMENT, body(4, replicas=4)))

    assert kept.deployment(M)["spec"]["replicas"] == 5
    assert "managedFields" not in kept.deployment(M)["metadata"]


def test_the_answer_to_a_write_does_not_restore_a_deleted_object() -> None:
    kept, _ = store()
    kept.put(entry_of(MODEL_DEPLOYMENT, body(5)))
    kept.drop(MODEL_DEPLOYMENT, M, "uid-m")
    kept.put(entry_of(MODEL_DEPLOYMENT, body(6)))
    assert kept.deployment(M) is None

    kept.put(entry_of(MODEL_DEPLOYMENT, body(7, uid="another of that name")))
    assert kept.deployment(M) is not None


def test_the_end_of_an_older_object_does_not_end_its_successor() -> None:
    kept, _ = store()
    kept.put(entry_of(MODEL_DEPLOYMENT, body(7, uid="younger")))
    kept.drop(MODEL_DEPLOYMENT, M, "uid-m")

    assert kept.deployment(M) is not None


def test_a_change_of_a_child_is_reported_for_its_owner() -> None:
    kept, changed = store()
    kept.put(entry_of(DEPLOYMENT, workers()))

    assert changed == [M]
    assert [child["kind"] for child in kept.children(M)] == ["Deployment"]
    kept.drop(DEPLOYMENT, M, "uid-workers")
    assert changed == [M, M]
    assert kept.children(M) == []


def test_an_object_of_another_watched_kind_is_no_child(monkeypatch) -> None:
    monkeypatch.setattr("warmfleet_operator.watch.store.WATCHED", (*WATCHED, SECRET))
    kept, changed = store()
    kept.put(entry_of(DEPLOYMENT, workers()))
    kept.put(entry_of(SECRET, workers()))

    assert changed == [M, M]
    assert [child["kind"] for child in kept.children(M)] == ["Deployment"]


def test_a_change_of_names_is_reported_for_other_claimants() -> None:
    kept, changed = store()
    names = {"model": {"servedNames": ["shared"], "source": {}}}
    kept.put(entry_of(MODEL_DEPLOYMENT, body(1, **names)))
    changed.clear()

    kept.put(entry_of(MODEL_DEPLOYMENT, body(2, uid="uid-n", name="n", **names)))
    assert M in changed
    changed.clear()
    kept.drop(MODEL_DEPLOYMENT, Key("models", "n"), "uid-n")
    assert M in changed


def test_an_object_that_is_not_listed_is_removed_unless_it_is_newer() -> None:
    kept, _ = store()
    for version, name in ((5, "m"), (9, "n"), (6, "o")):
        kept.put(entry_of(MODEL_DEPLOYMENT, body(version, uid=f"uid-{name}", name=name)))

    kept.keep_only(MODEL_DEPLOYMENT, [Listed("models", "o", "uid-o", 6)], since_version=8)

    assert {key.name for key in kept.deployments()} == {"n", "o"}


@given(st.permutations(range(1, 7)))
def test_the_newest_wins_in_any_order(versions) -> None:
    kept, _ = store()
    for version in versions:
        kept.put(entry_of(MODEL_DEPLOYMENT, body(version, replicas=version)))

    assert kept.deployment(M)["spec"]["replicas"] == 6


def test_only_the_fields_of_a_pod_that_are_read_are_kept() -> None:
    kept, _ = store()
    raw = {
        "metadata": {
            "name": "m-1",
            "namespace": "models",
            "uid": "u",
            "resourceVersion": "3",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"warmfleet.dev/model-deployment": "m", "warmfleet.dev/revision": "r"},
            "annotations": {"large": "x" * 10_000},
        },
        "spec": {"nodeName": "node-0", "containers": [{"name": "engine"}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "engine", "restartCount": 2, "state": {"running": {}}}],
            "initContainerStatuses": [
                {"name": "model-fetch", "state": {"terminated": {"exitCode": 0, "message": "done"}}}
            ],
        },
    }
    kept.put(entry_of(POD, raw))

    (pod,) = kept.pods(M)
    assert (pod.revision, pod.ready, pod.engine.restarts, pod.fetch.message) == ("r", True, 2, "done")
    assert list(kept.affected_by({"u"}, set())) == []
    kept.put(entry_of(MODEL_DEPLOYMENT, body(1)))
    assert list(kept.affected_by({"u"}, set())) == [M]
    assert list(kept.affected_by(set(), {"m"})) == [M]


def test_deployments_are_counted_by_their_conditions() -> None:
    kept, _ = store()
    for name, ready in (("m", "True"), ("n", "False"), ("o", "False"), ("unobserved", None)):
        made = body(5, uid=name, name=name)
        if ready is not None:
            made["status"] = {"conditions": [{"type": "Ready", "status": ready}], "desiredReplicas": 2}
        kept.put(entry_of(MODEL_DEPLOYMENT, made))

    assert kept.conditions() == {("Ready", "True"): 1, ("Ready", "False"): 2}
    page = metrics_page(conditions=kept.conditions())
    assert 'warmfleet_operator_deployments{condition="Ready",status="False"} 2.0' in page


def test_each_deployment_has_its_figures_and_loses_them_with_its_end() -> None:
    kept, _ = store()
    made = body(5, replicas=3)
    made["status"] = {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "False"}],
        "desiredReplicas": 3,
        "readyReplicas": 2,
    }
    kept.put(entry_of(MODEL_DEPLOYMENT, made))
    metrics = OperatorMetrics()

    def of_each() -> list[str]:
        states = {(key.namespace, key.name): state for key, state in kept.states().items()}
        page = metrics_page(metrics, conditions=kept.conditions(), states=states)
        lines = (line for line in page.splitlines() if 'name="' in line)
        return [line.removeprefix("warmfleet_operator_deployment_") for line in lines]

    assert of_each() == [
        'condition{condition="Ready",name="m",namespace="models",status="True"} 1.0',
        'condition{condition="Stalled",name="m",namespace="models",status="False"} 1.0',
        'wanted_replicas{name="m",namespace="models"} 3.0',
        'ready_replicas{name="m",namespace="models"} 2.0',
    ]
    made["metadata"]["resourceVersion"] = "6"
    made["status"]["conditions"][0]["status"] = "Unknown"
    kept.put(entry_of(MODEL_DEPLOYMENT, made))
    assert [line for line in of_each() if "Ready" in line] == [
        'condition{condition="Ready",name="m",namespace="models",status="Unknown"} 1.0'
    ]
    kept.drop(MODEL_DEPLOYMENT, M, "uid-m")
    assert of_each() == []


def test_only_so_many_deployments_have_figures_of_their_own() -> None:
    state = DeploymentState((("Ready", "True"),), 1, 1)
    states = {("models", f"m{number:05}"): state for number in range(MAX_DEPLOYMENTS + 5)}
    page = metrics_page(states=states)

    wanted = [line for line in page.splitlines() if "wanted_replicas{" in line]
    assert len(wanted) == MAX_DEPLOYMENTS
    assert "m00000" in wanted[0]
    assert f"m{MAX_DEPLOYMENTS - 1:05}" in wanted[-1]
