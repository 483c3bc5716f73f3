"""Signals that are missing change no number that they could have kept."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.decision import LimitingRule
from warmfleet_testing.resources.scaling_signals import POLICY, Ticks, at_rest, last, loaded, signals


def test_a_replica_that_stops_reporting_is_no_reason_to_shrink_or_to_grow():
    view = replace(loaded(3, 60), missing_replicas=1)

    decision = last(POLICY, view, at_rest(4))

    assert decision.to_replicas == 4
    idle = last(POLICY, replace(loaded(3, 2), missing_replicas=1), at_rest(4))
    assert (idle.to_replicas, idle.limit) == (4, LimitingRule.SIGNALS_MISSING)


@pytest.mark.parametrize(
    "view",
    [
        signals(missing_replicas=4),
        signals(missing_replicas=4, routers=0, missing_routers=2),
        signals(routers=0),
    ],
    ids=["no replica reports", "all routers are gone", "there is no router"],
)
def test_without_any_signal_the_number_stays(view):
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 100), at_rest(4), 60)

    decisions = ticks.run(view, at_rest(4), 1200)

    assert {(item.to_replicas, item.limit) for item in decisions} == {(4, LimitingRule.SIGNALS_MISSING)}


def test_one_of_two_routers_gone_forbids_a_shrink_and_allows_growth():
    idle = last(POLICY, replace(loaded(4, 2), missing_routers=1), at_rest(4))
    busy = last(POLICY, replace(loaded(4, 100), missing_routers=1), at_rest(4), 30)

    assert (idle.to_replicas, idle.limit) == (4, LimitingRule.SIGNALS_MISSING)
    assert busy.to_replicas == 5
