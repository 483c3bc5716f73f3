"""A pod's status follows from its containers' states, as the kubelet derives it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.container.state import ContainerView, Running, Terminated, Waiting
from warmfleet_devcluster.node.pod.status import PodFacts, initialized, phase, pod_status

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"


def ended(code: int) -> Terminated:
    return Terminated(code, "Completed" if code == 0 else "Error", NOW, NOW, "process://1")


states = st.one_of(st.just(Waiting("ContainerCreating")), st.just(Running(NOW)), st.integers(0, 3).map(ended))


@st.composite
def views(draw: st.DrawFn, *, sidecars: bool = False) -> ContainerView:
    state = draw(states)
    running = isinstance(state, Running)
    started = running and draw(st.booleans())
    return ContainerView(
        name=draw(st.sampled_from("abcdef")),
        image="i",
        state=state,
        last=draw(st.none() | st.integers(0, 3).map(ended)),
        started=started,
        ready=started and draw(st.booleans()),
        restarts_always=sidecars and draw(st.booleans()),
    )


pods = st.tuples(
    st.sampled_from(("Always", "OnFailure", "Never")),
    st.lists(views(sidecars=True), max_size=3),
    st.lists(views(), min_size=1, max_size=3),
    st.booleans(),
)


def facts(policy: str, *, gates_open: bool = True, pod_ip: str = "10.244.0.2") -> PodFacts:
    return PodFacts(policy, gates_open, 1, "10.10.0.10", pod_ip, NOW)


def condition(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in status["conditions"] if c["type"] == name)


@given(pods)
def test_a_ready_pod_runs_and_all_of_its_containers_are_ready(pod):
    policy, inits, mains, gates_open = pod
    status = pod_status(facts(policy, gates_open=gates_open), inits, mains, previous={}, now=NOW)
    ready = condition(status, "Ready")["status"] == "True"
    containers_ready = condition(status, "ContainersReady")["status"] == "True"
    assert ready == (containers_ready and gates_open)
    if containers_ready:
        assert status["phase"] == "Running"
        assert all(view.ready for view in mains)
        assert initialized(inits)


@given(pods)
def test_a_status_computed_again_from_itself_is_itself(pod):
    policy, inits, mains, gates_open = pod
    about = facts(policy, gates_open=gates_open)
    first = pod_status(about, inits, mains, previous={}, now=NOW)
    assert pod_status(about, inits, mains, previous=first, now=LATER) == first


@given(pods, pods)
def test_a_condition_keeps_its_time_until_it_changes(before, after):
    first = pod_status(facts(before[0], gates_open=before[3]), *before[1:3], previous={}, now=NOW)
    second = pod_status(facts(before[0], gates_open=after[3]), *after[1:3], previous=first, now=LATER)
    for earlier, later in zip(first["conditions"], second["conditions"], strict=True):
        changed = earlier["status"] != later["status"]
        assert later["lastTransitionTime"] == (LATER if changed else NOW)


@given(pods, pods)
def test_a_final_phase_is_final(before, after):
    first = pod_status(facts(before[0]), *before[1:3], previous={}, now=NOW)
    second = pod_status(facts(before[0]), *after[1:3], previous=first, now=LATER)
    if first["phase"] in ("Succeeded", "Failed"):
        assert second["phase"] == first["phase"]
        assert condition(second, "Ready")["status"] == "False"


@given(pods)
def test_only_a_pod_that_may_end_ends_and_only_if_nothing_runs(pod):
    policy, inits, mains, _ = pod
    decided = phase(policy, inits, mains)
    running = any(isinstance(view.state, Running) for view in mains)
    if decided == "Succeeded":
        assert policy != "Always"
        assert not running
        assert all(
            (view.state if isinstance(view.state, Terminated) else view.last).exit_code == 0 for view in mains
        )
    if decided == "Failed":
        assert policy == "Never"


def view(state: Any, **more: Any) -> ContainerView:
    return ContainerView("c", "i", state, **more)


def test_phases_of_a_pod_from_its_creation_to_its_end():
    creating = view(Waiting("ContainerCreating"))
    assert phase("Never", [], [creating]) == "Pending"
    assert phase("Never", [view(Running(NOW))], [creating]) == "Pending"
    assert phase("Never", [view(ended(0))], [creating]) == "Pending"
    assert phase("Never", [view(ended(1))], [creating]) == "Failed"
    assert phase("OnFailure", [view(ended(1))], [creating]) == "Pending"
    assert phase("Never", [view(ended(0))], [view(Running(NOW))]) == "Running"
    assert phase("Never", [], [view(ended(0)), view(Running(NOW))]) == "Running"
    assert phase("Never", [], [view(ended(0)), view(ended(0))]) == "Succeeded"
    assert phase("Never", [], [view(ended(0)), view(ended(2))]) == "Failed"
    assert phase("OnFailure", [], [view(ended(2))]) == "Running"
    assert phase("Always", [], [view(ended(0))]) == "Running"


def test_a_container_in_crash_loop_keeps_its_pod_running():
    crashing = view(Waiting("CrashLoopBackOff", "back-off 10s"), last=ended(1), restart_count=3)
    status = pod_status(facts("Always"), [], [crashing], previous={}, now=NOW)
    assert status["phase"] == "Running"
    (shown,) = status["containerStatuses"]
    assert shown["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert shown["lastState"]["terminated"]["exitCode"] == 1
    assert shown["restartCount"] == 3
    assert condition(status, "Ready")["message"] == "containers with unready status: [c]"


def test_a_pod_without_a_network_shows_no_address():
    status = pod_status(
        facts("Always", pod_ip=""), [], [view(Waiting("ContainerCreating"))], previous={}, now=NOW
    )
    assert "podIP" not in status
    assert condition(status, "PodReadyToStartContainers")["status"] == "False"
