"""Probes change their verdict after enough equal results in a row."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.container.probe_state import ProbeState, ProbeTiming, Verdict

results = st.lists(st.booleans(), max_size=40)
thresholds = st.builds(
    lambda success, failure: ProbeTiming(success_threshold=success, failure_threshold=failure),
    st.integers(1, 4),
    st.integers(1, 4),
)


def run(kind, timing, results):
    state = ProbeState.initial(kind)
    for succeeded in results:
        state = state.after(timing, succeeded=succeeded)
    return state


@given(st.sampled_from(("startupProbe", "readinessProbe", "livenessProbe")), thresholds, results)
def test_the_verdict_is_that_of_the_last_run_that_met_its_threshold(kind, timing, results):
    expected = ProbeState.initial(kind).verdict
    for end in range(1, len(results) + 1):
        for outcome, needed, verdict in (
            (True, timing.success_threshold, Verdict.SUCCESS),
            (False, timing.failure_threshold, Verdict.FAILURE),
        ):
            if end >= needed and all(result is outcome for result in results[end - needed : end]):
                expected = verdict
    assert run(kind, timing, results).verdict is expected


def test_a_container_counts_as_alive_until_a_failure_and_as_ready_only_after_a_success():
    assert ProbeState.initial("livenessProbe").verdict is Verdict.SUCCESS
    assert ProbeState.initial("readinessProbe").verdict is Verdict.UNKNOWN
    assert ProbeState.initial("startupProbe").verdict is Verdict.UNKNOWN


def test_what_a_manifest_leaves_out_is_kubernetes_default():
    assert ProbeTiming.of({}) == ProbeTiming(0, 10, 1, 1, 3)
    assert ProbeTiming.of({"periodSeconds": 2, "failureThreshold": 60}).failure_threshold == 60
