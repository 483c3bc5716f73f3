"""The number of replicas: by the spec, or by autoscaling from what the Deployment has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.names import FIRST_REPLICAS_ANNOTATION, REPLICAS_ANNOTATION
from warmfleet_operator.replicas.number import ReplicaBounds, replica_number, with_number
from warmfleet_testing.resources.observations import decided, workers

ACTIVE = ReplicaBounds(2, "Active", 1, 8)
SLEEPER = ReplicaBounds(2, "Active", 0, 8)
FIXED = ReplicaBounds(2)


def of(number: int, first: int | None = 2, last: int | None = None):
    """A Deployment with this number, and what an operator has noted in it."""
    last = number if last is None else last
    notes = {} if first is None else {FIRST_REPLICAS_ANNOTATION: str(first), REPLICAS_ANNOTATION: str(last)}
    return workers(wanted=number, **notes)


def decides(current: int, wanted: int):
    return decided(wanted, from_replicas=current)


def test_a_fixed_number_is_the_specs_and_not_the_deployments() -> None:
    assert replica_number(FIXED, of(5), decides(5, 6)).replicas == 2
    assert with_number(workers(), replica_number(FIXED, None, None), 2) == workers()


def test_a_new_fleet_begins_with_the_specs_number_within_its_bounds() -> None:
    assert replica_number(ACTIVE, None, None).replicas == 2
    assert replica_number(ReplicaBounds(1, "Active", 3, 8), None, None).replicas == 3


def test_a_deployment_that_was_deleted_is_made_again_with_the_number_that_it_had() -> None:
    assert replica_number(ACTIVE, None, None, known=6).replicas == 6
    assert replica_number(ACTIVE, None, None, known=9).replicas == 8, "within the bounds"
    assert replica_number(SLEEPER, None, None, known=0).replicas == 0, "it slept"
    assert replica_number(FIXED, None, None, known=6).replicas == 2


def test_a_decision_is_carried_out_once() -> None:
    grows = decides(4, 6)

    assert replica_number(ACTIVE, of(4), grows).replicas == 6
    assert replica_number(ACTIVE, of(6), grows).replicas == 6, "it was made from 4 replicas"


def test_without_a_decision_the_number_stays_so_that_a_restart_moves_nothing() -> None:
    assert replica_number(ACTIVE, of(6), None).replicas == 6
    assert replica_number(ReplicaBounds(2, "Active", 1, 5), of(6), None).replicas == 5, "a lower maximum"


@given(
    st.integers(0, 9),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 9),
    st.sampled_from([None, 0, 3, 7]),
)
def test_what_was_written_is_kept_by_the_next_operator(replicas, one, other, current, wanted) -> None:
    bounds = ReplicaBounds(replicas, "Active", min(one, other), max(one, other))
    decision = None if wanted is None else decides(current, wanted)

    number = replica_number(bounds, of(current, replicas), decision)
    written = with_number(workers(), number, number.replicas)
    again = replica_number(bounds, written, None)

    assert bounds.min_replicas <= number.replicas <= bounds.max_replicas
    assert again.replicas == number.replicas
    assert again.external_scaler == number.external_scaler == ""


def test_a_first_size_that_is_edited_later_is_reported_and_moves_nothing() -> None:
    number = replica_number(ReplicaBounds(5, "Active", 1, 8), of(3), decides(3, 4))

    assert number.replicas == 4
    assert "set spec.replicas from 2 to 5, which has no effect" in number.external_scaler
    assert with_number(workers(), number, 4)["metadata"]["annotations"][FIRST_REPLICAS_ANNOTATION] == "2"


def test_a_number_that_another_client_gave_the_deployment_counts_and_is_reported_until_a_decision() -> None:
    found = of(7, last=3)
    kept = replica_number(ACTIVE, found, decides(3, 4))
    still = replica_number(ACTIVE, with_number(found, kept, kept.replicas), None)
    after = replica_number(ACTIVE, found, decides(7, 6))

    assert (kept.replicas, still.replicas, after.replicas) == (7, 7, 6)
    assert "set the Deployment to 7 replicas" in kept.external_scaler
    assert still.external_scaler == kept.external_scaler
    assert after.external_scaler == ""


@pytest.mark.parametrize("mode", ["Advisory", "Paused"])
def test_another_mode_keeps_the_number_until_the_specs_is_written(mode: str) -> None:
    """Pausing a fleet of six must not cut it to its first size."""
    kept = replica_number(ReplicaBounds(2, mode, 1, 8), of(6), None)
    written = replica_number(ReplicaBounds(3, mode, 1, 8), of(6), None)
    forgotten = replica_number(ReplicaBounds(2, mode, 1, 8), with_number(workers(wanted=3), written, 3), None)

    assert (kept.replicas, kept.first, kept.external_scaler) == (6, 2, "")
    assert (written.replicas, written.first) == (3, None)
    assert forgotten.replicas == 2
    assert replica_number(FIXED, of(6), None).replicas == 2, "without autoscaling the spec counts"


@pytest.mark.parametrize("mode", ["Active", "Advisory", "Paused"])
def test_after_a_suspension_a_fleet_begins_with_its_first_size(mode: str) -> None:
    suspended = replica_number(ReplicaBounds(2, mode, 1, 8, suspend=True), of(6), None)
    resumed = replica_number(ReplicaBounds(2, mode, 1, 8), with_number(workers(), suspended, 0), None)

    assert (suspended.replicas, resumed.replicas, resumed.external_scaler) == (0, 2, "")


def test_during_a_rollout_the_fleet_grows_and_does_not_shrink() -> None:
    assert replica_number(ACTIVE, of(4), decides(4, 5), rolls=True).replicas == 5
    assert replica_number(ACTIVE, of(4), decides(4, 3), rolls=True).replicas == 4


def test_replicas_without_a_place_are_given_back_for_a_rollout_and_only_for_it() -> None:
    assert replica_number(ACTIVE, of(5), decides(5, 5), without_place=2).replicas == 5
    assert replica_number(ACTIVE, of(5), decides(5, 5), rolls=True, without_place=2).replicas == 3
    assert replica_number(ACTIVE, of(1), None, rolls=True, without_place=1).replicas == 1
    lowest = ReplicaBounds(2, "Active", 4, 8)
    assert replica_number(lowest, of(5), None, rolls=True, without_place=2).replicas == 4


def test_marks_are_written_under_the_number_that_the_deployment_still_has() -> None:
    number = replica_number(ACTIVE, of(4), decides(4, 3))

    held = with_number(workers(), number, 4)
    crashed = replica_number(ACTIVE, {**of(4), "metadata": held["metadata"]}, None)

    assert held["spec"]["replicas"] == 4
    assert (crashed.replicas, crashed.external_scaler) == (4, "")


@pytest.mark.parametrize("text", ["", "many", "-1", "9" * 40, "²"])
def test_an_edited_note_counts_as_none(text: str) -> None:
    found = workers(wanted=4, **{FIRST_REPLICAS_ANNOTATION: text, REPLICAS_ANNOTATION: text})

    number = replica_number(ACTIVE, found, None)

    assert (number.replicas, number.first, number.last, number.external_scaler) == (4, 2, 4, "")


def test_a_fleet_sleeps_by_a_decision_and_stays_asleep_until_the_next_one() -> None:
    slept = replica_number(SLEEPER, of(1), decides(1, 0))
    written = with_number(workers(), slept, 0)

    assert slept.replicas == 0
    assert replica_number(SLEEPER, written, None).replicas == 0, "by any operator"
    assert replica_number(SLEEPER, written, decides(0, 3)).replicas == 3
    assert replica_number(SLEEPER, written, decides(0, 3), rolls=True).replicas == 3


def test_a_fleet_that_must_not_sleep_has_its_fewest_replicas() -> None:
    written = with_number(workers(), replica_number(SLEEPER, of(1), decides(1, 0)), 0)

    assert replica_number(ReplicaBounds(4, "Active", 2, 8), written, None).replicas == 2


@pytest.mark.parametrize(("mode", "replicas"), [("Advisory", 2), ("Paused", 2), (None, 2)])
def test_a_fleet_that_sleeps_when_its_mode_ends_gets_its_first_size(mode: str | None, replicas: int) -> None:
    """Nothing would wake it."""
    written = with_number(workers(), replica_number(SLEEPER, of(1), decides(1, 0)), 0)

    assert replica_number(ReplicaBounds(2, mode, 0, 8), written, None).replicas == replicas


def test_a_fleet_that_is_suspended_asleep_begins_with_its_first_size() -> None:
    written = with_number(workers(), replica_number(SLEEPER, of(1), decides(1, 0)), 0)
    suspended = replica_number(ReplicaBounds(2, "Active", 0, 8, suspend=True), written, None)
    noted = with_number(written, suspended, 0)

    assert replica_number(SLEEPER, noted, None).replicas == 2


def test_a_fleet_that_another_client_set_to_none_sleeps_where_it_may() -> None:
    found = of(0, last=3)
    sleeps = replica_number(SLEEPER, found, None)
    wakes = replica_number(SLEEPER, with_number(found, sleeps, 0), decides(0, 1))

    assert (sleeps.replicas, wakes.replicas) == (0, 1)
    assert "set the Deployment to 0 replicas" in sleeps.external_scaler
    assert wakes.external_scaler == ""
    assert replica_number(ACTIVE, found, None).replicas == 1


def test_a_new_fleet_without_replicas_begins_asleep() -> None:
    begins = replica_number(ReplicaBounds(0, "Active", 0, 4), None, None)

    assert begins.replicas == 0
    assert (
        replica_number(ReplicaBounds(0, "Active", 0, 4), with_number(workers(), begins, 0), None).replicas
        == 0
    )
