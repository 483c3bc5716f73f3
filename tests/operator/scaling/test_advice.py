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


REPLICAS_SET, BELOW = ScalingReason.REPLICAS_SET, ScalingReason.DEMAND_BELOW_SUPPLY
WITHDRAWN = ScalingReason.SHRINK_WITHDRAWN


def of_another(replicas):
    """At rest, with a number that another client set."""
    return replace(at_rest(replicas), set_by_another=True)


class Acting(Advised):
    """Decisions that are carried out, of a fleet that was at rest for some seconds."""

    def __init__(self, state, seconds=30, percent=70) -> None:
        super().__init__(acts=True)
        self.run(loaded(percent, state.ready), state, seconds)

    def shrinks(self, state):
        return self._next(state, state.ready - 1, BELOW)

    def stays(self, state, **fields):
        return self._next(state, state.ready, ScalingReason.STEADY, **fields)

    def _next(self, state, to_replicas, reason, **fields):
        """The changes after one more tick, of a leader that has observed for long enough."""
        latest = self.advice.latest
        inputs = replace(latest.inputs, observed_seconds=POLICY.up_stabilization_seconds)
        numbers = {"from_replicas": state.ready, "to_replicas": to_replicas, "reason": reason}
        made = replace(latest, inputs=inputs, at_seconds=latest.at_seconds + 2, **numbers, **fields)
        return self.decided(made, loaded(70, state.ready), state)


def test_a_replica_of_another_client_that_is_given_up_at_once_is_two_changes():
    """The number that is wanted is the same before and after, and a pod was taken."""
    acting = Acting(at_rest(4))

    expected = [(5, REPLICAS_SET), (4, BELOW)]
    assert acting.shrinks(of_another(5)) == expected
    assert acting.advice.decision == acting.advice.latest
    assert acting.shrinks(of_another(5)) == expected, "it is not carried out yet"


def test_a_number_of_another_client_is_called_so_also_where_it_was_wanted_before():
    acting = Acting(at_rest(4))
    acting.shrinks(at_rest(4))
    acting.stays(at_rest(3))

    assert acting.stays(of_another(4)) == [(3, BELOW), (4, REPLICAS_SET)]
    assert acting.stays(of_another(4)) == [(3, BELOW), (4, REPLICAS_SET)], "as long as it is kept"


def test_a_shrink_that_is_withdrawn_while_it_is_written_keeps_its_reason():
    acting = Acting(at_rest(4))
    acting.shrinks(at_rest(4))

    withdrawn = [(3, BELOW), (4, WITHDRAWN)]
    assert acting.stays(at_rest(4), limit=LimitingRule.SIGNALS_MISSING) == withdrawn
    assert acting.advice.decision.limit is LimitingRule.SIGNALS_MISSING
    assert acting.stays(at_rest(3)) == [*withdrawn, (3, BELOW)]
    assert acting.stays(of_another(4)) == [*withdrawn, (3, BELOW), (4, REPLICAS_SET)]


@pytest.mark.parametrize("state", [of_another(3), of_another(6), at_rest(6)])
def test_a_number_that_is_set_after_a_withdrawn_shrink_is_not_the_shrinks(state):
    acting = Acting(at_rest(4))
    acting.shrinks(at_rest(4))
    acting.stays(at_rest(4))

    assert acting.stays(state)[2:] == [(state.ready, REPLICAS_SET)]


@pytest.mark.parametrize(
    ("state", "added"), [(of_another(5), [(5, REPLICAS_SET)]), (at_rest(5), [])], ids=["another", "operator"]
)
def test_the_first_decision_of_a_leader_names_the_client_that_set_the_number_before_it(state, added):
    """Of an operator's number the leader before wanted one fewer, and ended before that was carried out."""
    shrinks, waits = Acting(state, 6), Acting(state, 6)
    assert not shrinks.advice.settled
    assert shrinks.advice.changes == ()

    assert shrinks.shrinks(state) == [*added, (4, BELOW)]
    assert waits.stays(state, limit=LimitingRule.NOT_READY) == added
    assert waits.shrinks(state) == [*added, (4, BELOW)]


def test_a_leaders_first_decision_can_be_withdrawn():
    acting = Acting(at_rest(4), 6)
    acting.shrinks(at_rest(4))
    acting.stays(at_rest(4))

    assert acting.stays(at_rest(3)) == [(3, BELOW), (4, WITHDRAWN), (3, BELOW)]


def test_a_shrink_that_was_not_settled_is_none_that_is_withdrawn():
    acting = Acting(of_another(5), 6)
    unsettled = replace(acting.advice.latest, to_replicas=4, reason=BELOW)
    acting.decided(unsettled, loaded(70, 5), of_another(5))
    assert not acting.advice.settled

    assert acting.stays(of_another(5)) == [(5, REPLICAS_SET)]
    assert acting.advice.reason is REPLICAS_SET


def test_changes_stay_over_a_time_without_observation():
    acting = Acting(at_rest(4))
    acting.shrinks(at_rest(4))
    acting.stays(at_rest(3))
    again = replace(acting.advice.latest.inputs, observed_seconds=0)
    acting.decided(replace(acting.advice.latest, inputs=again), loaded(70, 3), at_rest(3))
    assert not acting.advice.settled

    assert acting.shrinks(of_another(5)) == [(3, BELOW), (5, REPLICAS_SET), (4, BELOW)]


def test_advice_that_is_not_carried_out_calls_each_number_that_is_set_so():
    advisory = Advised()
    advisory.run(loaded(70), at_rest(4), 30)
    fewer = replace(advisory.advice.latest, to_replicas=3, reason=BELOW)
    advisory.decided(fewer, loaded(50), at_rest(4))
    advisory.run(loaded(70), at_rest(4), 0)
    advisory.run(loaded(70, 3), at_rest(3), 0)

    reasons = [(change.wanted, change.reason) for change in advisory.advice.changes]
    assert reasons == [(3, BELOW), (4, WITHDRAWN), (3, REPLICAS_SET)]


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
