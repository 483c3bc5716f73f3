"""The tick over all fleets: which it decides for, whom it reports, and how much work it is."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from warmfleet_contracts.cache.fleet_totals import ModelTotals
from warmfleet_operator.objects.kinds import DEPLOYMENT, POD
from warmfleet_operator.scaling import decider as decider_module
from warmfleet_operator.scaling.decide import decide
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.status.replica_state import deployment_scale
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_testing.resources.observations import workers
from warmfleet_testing.resources.scaled_fleets import Fleets
from warmfleet_testing.resources.scaling_signals import POLICY, SUPPLY_TOKENS


def test_a_fleet_that_is_followed_gets_advice_and_is_reported_when_it_changes() -> None:
    fleets = Fleets(1, 2, pinned_tokens=SUPPLY_TOKENS)
    (key,) = fleets.keys

    fleets.run(8)
    assert fleets.changed == []
    fleets.run(20, start=10.0)

    advice = fleets.advisor.advice(key)
    assert advice is not None
    assert advice.wanted == 3
    assert fleets.changed == [key], "once, when its advice settled"


def test_a_decision_is_over_when_another_client_sets_the_number_again_that_it_was_made_from() -> None:
    fleets = Fleets(1, 2, pinned_tokens=SUPPLY_TOKENS)
    (key,) = fleets.keys
    fleets.advisor.follow(key, POLICY, ["m0"], acts=True)
    fleets.run(20)
    found = fleets.store.child(DEPLOYMENT, key)
    assert found is not None
    # Generation 2 was the operator's write of three replicas, generation 3 is the other client's of two.
    back = {**found, "metadata": found["metadata"] | {"generation": 3, "resourceVersion": "99"}}

    first = fleets.advisor.decision(key, deployment_scale(found))
    repeated = fleets.advisor.decision(key, deployment_scale(back))
    fleets.store.put(entry_of(DEPLOYMENT, back))
    fleets.advisor.tick(22.0)
    anew = fleets.advisor.decision(key, deployment_scale(back))

    assert first is not None
    assert (first.from_replicas, first.to_replicas) == (2, 3)
    assert repeated is None
    assert anew is not None
    assert (anew.at_seconds, anew.to_replicas) == (22.0, 3)


def test_a_fleet_whose_deployment_is_not_there_yet_gets_none() -> None:
    fleets = Fleets(0, 0)
    fleets.advisor.follow(Key("models", "new"), POLICY, ["new"])

    fleets.run(20)

    assert fleets.advisor.advice(Key("models", "new")) is None
    assert fleets.advisor.all_advice() == {}


def test_what_is_forgotten_is_decided_no_more() -> None:
    fleets = Fleets(2, 1)
    fleets.run(20)

    fleets.advisor.forget(fleets.keys[0])
    kept = set(fleets.advisor.all_advice())
    fleets.advisor.forget_all()

    assert kept == {fleets.keys[1]}
    assert fleets.advisor.all_advice() == {}


def test_a_fleet_without_a_decision_keeps_no_other_from_having_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fleets = Fleets(3, 2, pinned_tokens=SUPPLY_TOKENS)
    broken = replace(POLICY, max_replicas=7)
    fleets.advisor.follow(fleets.keys[1], broken, ["m1"])

    def decides(policy: AutoscalingPolicy, *arguments: Any) -> Any:
        if policy == broken:
            raise OverflowError("cannot convert float infinity to integer")
        return decide(policy, *arguments)

    monkeypatch.setattr(decider_module, "decide", decides)
    fleets.run(20)

    assert set(fleets.advisor.all_advice()) == {fleets.keys[0], fleets.keys[2]}


def sleeping() -> tuple[Fleets, Key, Key]:
    """A fleet without replicas that was just found, another that runs, and one request for the first."""
    fleets = Fleets(2, 1)
    asleep, awake = fleets.keys
    made = workers(wanted=0, ready=0)
    made["metadata"] |= {"name": asleep.name, "uid": f"uid-{asleep.name}", "resourceVersion": "99"}
    made["metadata"]["labels"] = {"warmfleet.dev/model-deployment": asleep.name}
    fleets.store.put(entry_of(DEPLOYMENT, made))
    fleets.store.drop(POD, Key("models", f"{asleep.name}-0"), f"uid-{asleep.name}-0")
    for key in fleets.keys:
        fleets.advisor.follow(key, replace(POLICY, min_replicas=0), [key.name], acts=True)
    return fleets, asleep, awake


def test_a_request_for_a_fleet_that_sleeps_counts_at_the_first_tick_of_a_new_operator() -> None:
    fleets, asleep, _ = sleeping()
    (answer,) = fleets.totals.answers
    held = {**answer.models, asleep.name: ModelTotals(held_requests=1, held_tokens=10)}
    fleets.totals.answers = (msgspec.structs.replace(answer, models=held),)

    fleets.advisor.tick(5000.0)

    advice = fleets.advisor.advice(asleep)
    assert advice is not None
    assert (advice.wanted, advice.settled) == (1, True)
    assert fleets.changed == [asleep]


def test_between_ticks_only_fleets_that_sleep_are_decided_for() -> None:
    fleets, asleep, awake = sleeping()
    assert not fleets.advisor.any_asleep, "before the first tick"
    fleets.advisor.tick(5000.0)
    before = fleets.advisor.advice(awake)

    fleets.advisor.tick(5001.0, only_asleep=True)

    advice = fleets.advisor.advice(asleep)
    assert fleets.advisor.any_asleep
    assert fleets.advisor.advice(awake) is before
    assert advice is not None
    assert advice.latest.at_seconds == 5001.0
    fleets.advisor.forget(asleep)
    assert not fleets.advisor.any_asleep


def test_a_new_policy_takes_effect_and_keeps_what_was_observed() -> None:
    fleets = Fleets(1, 2, pinned_tokens=SUPPLY_TOKENS)
    (key,) = fleets.keys
    fleets.run(20)

    fleets.advisor.follow(key, replace(POLICY, max_replicas=2), ["m0"])
    fleets.advisor.tick(22.0)

    advice = fleets.advisor.advice(key)
    assert advice is not None
    assert (advice.wanted, advice.settled) == (2, True)


def test_a_restarted_operator_wants_the_same_number() -> None:
    first, second = (Fleets(1, 2, pinned_tokens=SUPPLY_TOKENS) for _ in range(2))
    first.run(300)
    second.run(12, start=9000.0)

    wanted = [fleets.advisor.advice(fleets.keys[0]).wanted for fleets in (first, second)]  # type: ignore[union-attr]

    assert wanted == [3, 3]


def test_the_deployment_is_decoded_once_per_version() -> None:
    fleets = Fleets(1, 2)
    decoded = []
    child: Callable = fleets.store.child
    fleets.store.child = lambda kind, key: (decoded.append(key), child(kind, key))[1]  # type: ignore[method-assign]

    fleets.run(40)
    assert len(decoded) == 1
    made = workers()
    made["metadata"] |= {"name": "m0", "uid": "uid-m0", "resourceVersion": "99"}
    fleets.store.put(entry_of(DEPLOYMENT, made))
    fleets.run(4, start=42.0)

    assert len(decoded) == 2


def calls(action: Callable[[], None]) -> int:
    """Calls of Python functions that `action` makes."""
    made = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal made
        made += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.parametrize("replicas", [1, 10])
def test_the_work_of_a_tick_grows_with_fleets_and_replicas_and_with_nothing_else(replicas: int) -> None:
    """benchmarks/scaling_tick.py has the time; totals are read and merged once for all fleets."""
    few, many = Fleets(10, replicas), Fleets(40, replicas)
    few.run(120)
    many.run(120)
    few.totals.reads = many.totals.reads = 0

    made_few = calls(lambda: few.advisor.tick(122.0))
    made_many = calls(lambda: many.advisor.tick(122.0))

    assert few.totals.reads == many.totals.reads == 1
    assert made_many <= 4.2 * made_few
    assert made_many <= 40 * (400 + 40 * replicas)
