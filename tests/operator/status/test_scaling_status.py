"""What a status shows of autoscaling: the wanted number, its last changes, and one event for each."""

import itertools
from dataclasses import replace

from warmfleet_operator.objects.deployment_state import deployment_state, set_replicas
from warmfleet_operator.scaling.advice import Change
from warmfleet_operator.scaling.decide import choose, decide
from warmfleet_operator.scaling.decision import LimitingRule, ScalingReason
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.status.events import (
    changes_to_announce,
    decision_event_of,
    decisions_to_announce,
)
from warmfleet_operator.status.scaling_status import MAX_DECISIONS, inputs_as_text, inputs_of_text
from warmfleet_operator.status.status import Gauges, status_of, to_write
from warmfleet_testing.resources.condition_observations import scaled
from warmfleet_testing.resources.observations import NOW, advice, decided, deployment, serving
from warmfleet_testing.resources.scaling_signals import POLICY, at_rest, fleet, signals

SCALING = {"mode": "Advisory", "maxReplicas": 8}


def after(status, made=None, **fields):
    """The next status of a fleet of two whose last status is given."""
    resource = {**deployment(autoscaling=SCALING, **fields), "status": status}
    return status_of(scaled(deployment=resource, advice=made or advice()))


def test_the_wanted_number_is_shown_and_the_summary_counts_what_is_set():
    status = after(after({}), advice(5))

    assert status["desiredReplicas"] == 5
    assert status["readySummary"] == "2/2"


def test_a_change_of_the_wanted_number_is_recorded_with_reason_signals_rule_and_inputs():
    first = after({})
    made = advice(3, decided(3, limit=LimitingRule.RATE))

    status = after(first, made)

    (record,) = status["scaling"]["decisions"]
    assert "scaling" not in first
    assert record == {
        "time": "2027-01-15T08:00:00Z",
        "from": 2,
        "to": 3,
        "reason": "DemandAboveSupply",
        "limitedBy": "ScaleUpRate",
        "message": "demand of what ready replicas take: tokens 100 %, sequences unknown, compute 0 %; "
        "limited by ScaleUpRate",
        "recommendations": {"tokens": 3, "compute": 1},
        "inputs": {"specReplicas": "2", "readyReplicas": "2", "demandTokens": "190", "supplyTokens": "95"},
    }


def test_a_shrink_names_its_victim_by_the_pods_name():
    made = advice(1, decided(1, ScalingReason.DEMAND_BELOW_SUPPLY, victim="uid-m-2"))

    assert after(after({}), made)["scaling"]["decisions"][0]["victim"] == "m-2"


def test_the_same_advice_is_recorded_once_and_the_last_ten_are_kept_newest_first():
    status = after({})
    for number in (3, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 3):
        status = after(status, advice(number))

    decisions = status["scaling"]["decisions"]
    assert len(decisions) == MAX_DECISIONS
    assert [item["to"] for item in decisions] == [3, 4, 5, 6, 7, 8, 7, 6, 5, 4]
    assert all(newer["from"] == older["to"] for newer, older in itertools.pairwise(decisions))


def withdrawn():
    """Advice of two replicas again after five were wanted, which no status has shown."""
    grown = decided(5, at_seconds=NOW + 2)
    steady = decided(2, ScalingReason.STEADY, at_seconds=NOW + 4)
    fewer = ScalingReason.DEMAND_BELOW_SUPPLY
    changes = (Change(5, grown, grown.reason), Change(2, steady, fewer))
    return advice(2, steady, reason=fewer, changes=changes)


def test_growth_that_was_wanted_and_withdrawn_before_a_status_was_written_is_recorded_once():
    before = after({})
    status = after(before, withdrawn())

    records = status["scaling"]["decisions"]
    assert [(item["from"], item["to"], item["reason"]) for item in records] == [
        (5, 2, "DemandBelowSupply"),
        (2, 5, "DemandAboveSupply"),
    ]
    assert decisions_to_announce(before, status) == records[::-1]
    assert after(status, withdrawn()) == status


def test_changes_of_a_leader_whose_clock_is_behind_are_recorded_as_one():
    known = after(after({}), advice(3, decided(3, at_seconds=NOW + 3600)))

    records = after(known, withdrawn())["scaling"]["decisions"]

    assert [(item["from"], item["to"]) for item in records] == [(3, 2), (2, 3)]


def test_a_new_leader_shows_the_known_number_until_it_has_observed_for_long_enough():
    status = after(after({}), advice(5))

    waiting = after(status, advice(2, settled=False))
    again = after(waiting, advice(5))

    assert waiting == status
    assert again == status


def test_fixed_and_paused_fleets_want_what_is_set():
    fixed = status_of(serving())
    paused = status_of(scaled("Paused", advice=None))

    assert (fixed["desiredReplicas"], "scaling" in fixed) == (2, False)
    assert paused["desiredReplicas"] == 2


def test_the_history_goes_with_autoscaling():
    status = after(after({}), advice(5))

    assert "scaling" not in status_of(serving(deployment={**deployment(), "status": status}))


def test_a_decision_is_written_at_once_and_an_equal_status_never():
    before = after({})
    changed = after(before, advice(3))

    assert to_write(changed, before, Gauges(0.0), 1.0) == changed
    assert to_write(after(changed, advice(3)), changed, Gauges(0.0), 1.0) is None


def test_every_decision_has_an_event_of_its_own():
    before = after({})
    changed = after(before, advice(3))
    (record,) = decisions_to_announce(before, changed)

    event = decision_event_of(deployment(), record, "operator-0", NOW)

    assert (event["reason"], event["type"], event["action"]) == ("DemandAboveSupply", "Normal", "Scale")
    assert event["note"].startswith("wants 3 replicas instead of 2: demand of")
    assert decisions_to_announce(changed, after(changed, advice(3))) == []


def test_a_number_that_never_rests_has_five_events_a_minute():
    status, announced = after({}), []
    for turn in range(40):
        made = advice(3 + turn % 2)
        made = replace(made, decision=replace(made.decision, at_seconds=NOW + 2 * turn))
        before, status = status, after(status, made)
        if decisions_to_announce(before, status):
            announced.append(2 * turn)
    made = replace(advice(5), decision=replace(advice(5).decision, at_seconds=NOW + 200))

    assert announced == [0, 2, 4, 6, 8]
    assert decisions_to_announce(status, after(status, made)), "it rested for two minutes"


def test_lost_signals_and_pending_capacity_are_warnings_and_modes_are_no_event():
    given = after({})
    blind = after(given, advice(missing="no router reports totals"))
    stuck = after(given, advice(unschedulable=1))
    fixed = status_of(serving())

    def announced(first, second):
        kinds = changes_to_announce(first["conditions"], second["conditions"])
        return [(item["type"], item["reason"]) for item in kinds]

    assert announced(given, blind) == [("ScalingActive", "SignalsMissing")]
    assert announced(blind, given) == [("ScalingActive", "Advisory")]
    assert announced(given, stuck) == [("ScalingActive", "CapacityPending")]
    assert announced(fixed, given) == announced(given, fixed) == []


def test_recorded_inputs_give_the_recorded_decision_again():
    """What `kubectl get` shows is enough, with the policy of the same spec."""
    policy = replace(POLICY, max_replicas=8)
    view = signals(fleet(2, pinned_tokens=99_000, running_sequences=60), queued_tokens=500_000)
    _, decision = decide(policy, ScalingMemory(), view, at_rest(2), NOW)

    text = inputs_as_text(decision.inputs)
    choice = choose(policy, inputs_of_text(text))

    assert decision.to_replicas > 2
    assert (choice.replicas, choice.reason, choice.limit) == (
        decision.to_replicas,
        decision.reason,
        decision.limit,
    )
    assert len(text) <= 48


def test_metrics_of_a_deployment_show_the_number_that_is_set_and_not_the_advice():
    """Alerts compare it with what is ready."""
    resource = {**deployment(autoscaling=SCALING), "status": after(after({}), advice(5))}

    assert deployment_state(resource).wanted_replicas == 2
    assert set_replicas({"replicas": 1, "autoscaling": {"minReplicas": 3, "maxReplicas": 4}}) == 3
    assert set_replicas({"replicas": 9, "autoscaling": {"maxReplicas": 4}}) == 4
    assert set_replicas({"replicas": 9, "suspend": True}) == 0
