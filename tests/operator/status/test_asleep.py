"""What a fleet that sleeps, falls asleep or wakes reports."""

from typing import Any

from warmfleet_contracts.resources.conditions import ConditionStatus, ConditionType, Reason
from warmfleet_operator.objects.deployment_state import deployment_state, kept_replicas
from warmfleet_operator.objects.pods import ContainerView
from warmfleet_operator.scaling.decision import DecisionInputs, ScalingReason
from warmfleet_operator.status.conditions import conditions_of
from warmfleet_operator.status.events import changes_to_announce, decision_event_of, event_of
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.status import status_of
from warmfleet_testing.resources.condition_observations import asleep, unschedulable
from warmfleet_testing.resources.metrics_page import metrics_page
from warmfleet_testing.resources.observations import NOW, advice, decided, deployment, fleet, pod, workers

SCALING = {"mode": "Active", "minReplicas": 0, "maxReplicas": 8}
STARTING = {"desired_replicas": 1, "fleet": fleet()}


def known(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The resource with a status."""
    return {**deployment(autoscaling=SCALING, **spec), "status": status}


def one(observation: Observation, kind: ConditionType):
    return next(item for item in conditions_of(observation) if item.type is kind)


def waking(**fields: Any) -> Observation:
    """One replica was set, and is not ready."""
    starts = pod("m-2", ready=False, fetch=ContainerView())
    made = {"workers": workers(wanted=1, ready=0), "pods": (starts,), "advice": advice(1), **STARTING}
    return asleep(**{**made, **fields})


def test_since_when_it_sleeps_is_kept_until_it_wakes() -> None:
    first = status_of(asleep())
    later = status_of(asleep(deployment=known(first), now_seconds=NOW + 3600))
    awake = status_of(waking(deployment=known(later), now_seconds=NOW + 7200))

    assert later == first
    assert first["scaling"]["asleepSince"] == "2027-01-15T08:00:00Z"
    ready = first["conditions"][0]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "True", "Asleep")
    assert ready["message"] == (
        "no replica since 2027-01-15T08:00:00Z: a request for one of its names starts one"
    )
    assert "asleepSince" not in awake["scaling"]


def test_a_new_spec_that_is_rolled_out_asleep_is_as_asked_for() -> None:
    rolled = asleep(workers=workers(wanted=0, ready=0, updated=0))

    assert one(rolled, ConditionType.READY).reason is Reason.ASLEEP
    assert one(rolled, ConditionType.RECONCILING).status is ConditionStatus.FALSE


def test_what_crashed_or_was_refused_before_it_fell_asleep_stalls_it_no_more() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": ""}
    crashed = pod(ready=False, engine=ContainerView(waiting="CrashLoopBackOff", restarts=9, exit_code=2))
    stopping = asleep(pods=(crashed,), workers=workers(wanted=0, ready=0, conditions=(late,)))

    assert one(stopping, ConditionType.STALLED).status is ConditionStatus.FALSE
    assert one(stopping, ConditionType.READY).reason is Reason.PROGRESSING


def test_a_number_of_another_client_is_reported_while_it_sleeps() -> None:
    by_hand = asleep(external_scaler="another client set the Deployment to 0 replicas: scaling goes on")

    assert one(by_hand, ConditionType.READY).reason is Reason.ASLEEP
    assert one(by_hand, ConditionType.SCALING_ACTIVE).reason is Reason.EXTERNAL_SCALER


def test_that_nothing_can_wake_it_is_reported() -> None:
    scaling = one(asleep(advice=advice(0, missing="no router reports totals")), ConditionType.SCALING_ACTIVE)

    assert (scaling.status, scaling.reason) == (ConditionStatus.UNKNOWN, Reason.SIGNALS_MISSING)
    assert scaling.message == "no router reports totals: nothing wakes until it does"
    assert one(asleep(), ConditionType.SCALING_ACTIVE).reason is Reason.FOLLOWS_DEMAND


def test_requests_that_wait_for_a_fleet_without_a_place_are_counted_and_the_lack_is_reported() -> None:
    held = fleet()
    held.held["m"] = 7  # type: ignore[index]
    stuck = waking(pods=(unschedulable(600),), advice=advice(1, unschedulable=1), fleet=held)

    assert one(stuck, ConditionType.SCALING_ACTIVE).reason is Reason.CAPACITY_PENDING
    assert one(stuck, ConditionType.READY).reason is Reason.UNSCHEDULABLE
    assert status_of(stuck)["waitingRequests"] == 7


def test_a_newcomer_that_never_gets_ready_is_reported() -> None:
    engine = ContainerView(waiting="CrashLoopBackOff", restarts=3, exit_code=2, message="no model")
    crashes = waking(pods=(pod("m-2", ready=False, engine=engine),))
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": ""}
    slow = waking(workers=workers(wanted=1, ready=0, conditions=(late,)))

    assert one(waking(), ConditionType.READY).reason is Reason.PROGRESSING
    assert one(crashes, ConditionType.STALLED).reason is Reason.CRASH_LOOPING
    assert one(slow, ConditionType.STALLED).reason is Reason.STARTUP_TIMEOUT


def announced(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    changes = changes_to_announce(before["conditions"], after["conditions"])
    events = [event_of(deployment(), change, "operator-0", NOW) for change in changes]
    return [(event["reason"], event["type"]) for event in events]


def test_falling_asleep_and_waking_are_events_and_no_warnings() -> None:
    served = status_of(waking(workers=workers(wanted=1, ready=1), pods=(pod(),), fleet=fleet("m-1")))
    slept = status_of(asleep(deployment=known(served)))
    woken = status_of(waking(deployment=known(slept)))

    assert served["conditions"][0]["reason"] == "WorkersReady"
    assert announced(served, slept) == [("Asleep", "Normal")]
    assert announced(slept, slept) == []
    assert announced(slept, woken) == [("Progressing", "Normal")]


def test_decisions_to_none_and_from_none_have_their_reasons() -> None:
    served = status_of(waking(workers=workers(wanted=1, ready=1), pods=(pod(),), fleet=fleet("m-1")))
    idle = decided(0, ScalingReason.IDLE, from_replicas=1, inputs=DecisionInputs(idle_seconds=600))
    slept = status_of(asleep(deployment=known(served), advice=advice(0, idle)))
    held = DecisionInputs(waiting_requests=5)
    wakes = decided(1, ScalingReason.REQUESTS_HELD, from_replicas=0, inputs=held)
    woken = status_of(waking(deployment=known(slept), advice=advice(1, wakes)))

    newest, older = woken["scaling"]["decisions"]
    event = decision_event_of(deployment(), newest, "operator-0", NOW)
    assert older["message"] == "no request on any router for 600 s"
    assert event["note"] == "wants 1 replicas instead of 0: 5 requests wait, and no replica runs"
    assert event["reason"] == "RequestsHeld"


def test_a_deployment_that_was_deleted_is_made_again_as_asleep_as_it_was() -> None:
    suspended = asleep(deployment=deployment(autoscaling=SCALING, suspend=True))

    assert kept_replicas(status_of(asleep())) == 0
    assert kept_replicas(status_of(asleep(pods=(pod(terminating=True),)))) == 0
    assert kept_replicas(status_of(suspended)) is None
    assert kept_replicas(status_of(waking())) == 1
    assert kept_replicas({}) is None


def test_metrics_want_no_replica_of_it() -> None:
    state = deployment_state(known(status_of(asleep())))
    page = metrics_page(states={("models", "m"): state}, advice={("models", "m"): advice(0)})

    for name in ("deployment_wanted_replicas", "scaling_wanted_replicas", "scaling_blind"):
        assert f'warmfleet_operator_{name}{{name="m",namespace="models"}} 0.0' in page
