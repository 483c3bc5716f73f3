"""Advice: a number that stays until it is acted on, and what is reported of missing signals."""

import itertools
from dataclasses import replace

import pytest

from warmfleet_operator.scaling.advice import (
    MAX_CHANGES,
    AdviceMemory,
    advised,
    explained,
    in_words,
    missing_signals,
)
from warmfleet_operator.scaling.decision import LimitingRule, ReplicaState, ScalingReason
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    signals,
)


class Advised:
    """Ticks with advice."""

    def __init__(self, policy: AutoscalingPolicy = POLICY, *, acts: bool = False) -> None:
        self.ticks, self.acts = Ticks(policy), acts
        self.memory, self.advice = AdviceMemory(), None

    def run(self, view, state, seconds):
        """The wanted number of each tick."""
        numbers = []
        for _ in range(round(seconds / 2) + 1):
            self.decided(self.ticks.tick(view, state), view, state)
            numbers.append(self.advice.wanted)
        return numbers

    def decided(self, decision, view, state):
        """The changes, after one more decision."""
        self.memory, self.advice = advised(
            self.ticks.policy,
            self.memory,
            before=self.advice,
            decision=decision,
            signals=view,
            state=state,
            acts=self.acts,
        )
        return [(change.wanted, change.reason) for change in self.advice.changes]


def loaded(percent, count=4):
    return signals(fleet(count, pinned_tokens=SUPPLY_TOKENS * percent // 100))


def test_growth_that_is_not_carried_out_stays_advised_for_the_time_of_stabilization():
    fleet_of_four = Advised()
    fleet_of_four.run(loaded(100), at_rest(4), 30)

    numbers = fleet_of_four.run(loaded(70), at_rest(4), 310)

    assert set(numbers[:150]) == {5}
    assert numbers[-1] == 4
    assert fleet_of_four.advice.reason is ScalingReason.DEMAND_BELOW_SUPPLY


def test_every_change_of_a_settled_number_is_kept_up_to_a_bound():
    fleet_of_four = Advised()
    fleet_of_four.run(loaded(100), at_rest(4), 8)
    early = fleet_of_four.advice.changes
    for _ in range(12):
        fleet_of_four.run(loaded(70), at_rest(4), 310)
        fleet_of_four.run(loaded(100), at_rest(4), 30)
    fleet_of_four.run(loaded(70), at_rest(4), 310)

    changes = fleet_of_four.advice.changes
    assert early == ()
    assert [change.wanted for change in changes] == [5, 4] * (MAX_CHANGES // 2)
    assert (changes[-1].decision, changes[-1].reason) == (
        fleet_of_four.advice.decision,
        ScalingReason.DEMAND_BELOW_SUPPLY,
    )


def test_a_replica_of_another_client_that_is_given_up_at_once_is_two_changes():
    """The number that is wanted is the same before and after, and a pod was taken."""
    acting = Advised(acts=True)
    acting.run(loaded(70), at_rest(4), 30)
    below = {"to_replicas": 4, "reason": ScalingReason.DEMAND_BELOW_SUPPLY}
    decision = replace(acting.advice.latest, from_replicas=5, **below)

    expected = [(5, ScalingReason.REPLICAS_SET), (4, ScalingReason.DEMAND_BELOW_SUPPLY)]
    assert acting.decided(decision, loaded(70, 5), at_rest(5)) == expected
    assert acting.advice.decision == decision
    assert acting.decided(decision, loaded(70, 5), at_rest(5)) == expected, "it is not carried out yet"


def test_a_shrink_that_is_withdrawn_while_it_is_written_keeps_its_reason():
    acting = Advised(acts=True)
    acting.run(loaded(70), at_rest(4), 30)
    fewer = replace(acting.advice.latest, to_replicas=3, reason=ScalingReason.DEMAND_BELOW_SUPPLY)
    kept = replace(acting.advice.latest, limit=LimitingRule.SIGNALS_MISSING)
    lowered = replace(acting.advice.latest, from_replicas=3, to_replicas=3)

    acting.decided(fewer, loaded(50), at_rest(4))
    withdrawn = [(3, ScalingReason.DEMAND_BELOW_SUPPLY), (4, ScalingReason.STEADY)]
    assert acting.decided(kept, loaded(50), at_rest(4)) == withdrawn
    assert acting.advice.decision.limit is LimitingRule.SIGNALS_MISSING
    expected = [*withdrawn, (3, ScalingReason.DEMAND_BELOW_SUPPLY)]
    assert acting.decided(lowered, loaded(50, 3), at_rest(3)) == expected

    raised = replace(lowered, from_replicas=4, to_replicas=4)
    of_another = (4, ScalingReason.REPLICAS_SET)
    assert acting.decided(raised, loaded(50), at_rest(4)) == [*expected, of_another]


@pytest.mark.parametrize("set_by_another", [True, False])
def test_a_new_leader_that_gives_a_replica_up_at_first_names_the_client_that_added_it(set_by_another):
    acting = Advised(acts=True)
    acting.run(loaded(70), at_rest(4), 8)
    assert not acting.advice.settled
    below = {"to_replicas": 4, "reason": ScalingReason.DEMAND_BELOW_SUPPLY}
    inputs = replace(acting.advice.latest.inputs, observed_seconds=POLICY.up_stabilization_seconds)
    decision = replace(acting.advice.latest, from_replicas=5, inputs=inputs, **below)

    # Without that note the leader before wanted four, and ended before it had carried that out.
    added = [(5, ScalingReason.REPLICAS_SET), (4, ScalingReason.DEMAND_BELOW_SUPPLY)]
    state = replace(at_rest(5), set_by_another=set_by_another)
    assert acting.decided(decision, loaded(70, 5), state) == (added if set_by_another else [])


def test_growth_that_is_decided_again_until_it_is_carried_out_is_one_change():
    acting = Advised(acts=True)
    acting.run(loaded(70), at_rest(4), 30)
    acting.run(loaded(100), at_rest(4), 30)
    steady = replace(acting.advice.latest, from_replicas=5, to_replicas=5, reason=ScalingReason.STEADY)

    expected = [(5, ScalingReason.DEMAND_ABOVE_SUPPLY)]
    assert acting.decided(steady, loaded(75, 5), at_rest(5)) == expected


def test_demand_that_comes_and_goes_changes_the_number_once():
    fleet_of_four = Advised()
    numbers = []
    for _ in range(60):
        numbers += fleet_of_four.run(loaded(100), at_rest(4), 20)
        numbers += fleet_of_four.run(loaded(75), at_rest(4), 20)

    assert sum(first != second for first, second in itertools.pairwise(numbers)) == 1


def test_the_reason_and_the_decision_are_those_of_the_change():
    fleet_of_four = Advised()
    fleet_of_four.run(loaded(100), at_rest(4), 30)
    made_by = fleet_of_four.advice.decision

    fleet_of_four.run(loaded(70), at_rest(4), 30)

    assert fleet_of_four.advice.decision == made_by
    assert fleet_of_four.advice.reason is ScalingReason.DEMAND_ABOVE_SUPPLY
    assert fleet_of_four.advice.latest.reason is ScalingReason.STEADY


def test_a_number_that_another_client_sets_is_followed_and_called_so():
    fleet_of_four = Advised()
    fleet_of_four.run(loaded(70), at_rest(4), 30)

    assert fleet_of_four.run(loaded(70, 6), at_rest(6), 0) == [6]
    assert fleet_of_four.advice.reason is ScalingReason.REPLICAS_SET


def test_advice_is_settled_once_growth_could_have_been_asked_for():
    fleet_of_four = Advised()

    fleet_of_four.run(loaded(70), at_rest(4), 8)
    early = fleet_of_four.advice.settled
    fleet_of_four.run(loaded(70), at_rest(4), 2)

    assert (early, fleet_of_four.advice.settled) == (False, True)


def test_advice_stays_within_bounds_that_were_lowered():
    fleet_of_four = Advised()
    fleet_of_four.run(loaded(100), at_rest(4), 30)
    fleet_of_four.ticks.policy = replace(POLICY, max_replicas=4)

    assert fleet_of_four.run(loaded(100), at_rest(4), 0) == [4]


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (signals(routers=0), "no router reports totals"),
        (signals(missing_routers=1), "a router does not report totals"),
        (signals(missing_replicas=3), "a ready replica does not report"),
        (signals(), ""),
    ],
)
def test_missing_signals_are_named_without_numbers_that_change(view, text):
    assert missing_signals(view) == text


def test_missing_signals_are_reported_after_half_a_minute_and_no_more_when_they_are_back():
    blind = Advised()
    view = replace(loaded(50), missing_routers=1)

    blind.run(view, at_rest(4), 28)
    early = blind.advice.missing
    blind.run(view, at_rest(4), 2)
    late = blind.advice.missing
    blind.run(loaded(50), at_rest(4), 0)

    assert (early, late, blind.advice.missing) == ("", "a router does not report totals", "")


def test_replicas_without_a_place_are_reported_at_once():
    stuck = Advised()
    stuck.run(loaded(50), ReplicaState(6, 4, pending=2, unschedulable=2), 0)

    assert stuck.advice.unschedulable == 2


def test_a_decision_is_explained_with_its_numbers():
    decision = Ticks(POLICY).run(loaded(100), at_rest(4), 30)[-1]

    assert explained(decision) == (
        "demand of what ready replicas take: tokens 100 %, sequences 0 %, compute 0 %"
    )
    assert explained(replace(decision, limit=LimitingRule.RATE)).endswith("; limited by ScaleUpRate")


def test_every_reason_has_words_of_its_own():
    assert len({in_words(reason) for reason in ScalingReason}) == len(ScalingReason)
