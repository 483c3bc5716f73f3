"""What fleets cost that know the traffic, from which requests fleets of each size answered in time."""

import pytest
from msgspec.structs import replace

from warmfleet_simulator.scaling.bounds import (
    Met,
    clairvoyant_seconds,
    meets_a_window,
    needed_at_first,
    peak_static,
    windows_needed,
)
from warmfleet_simulator.scaling.objective import Objective

OBJECTIVE = Objective(
    gpu="L4",
    model="m",
    first_token_milliseconds=1000,
    between_tokens_milliseconds=100,
    percent=90,
    start_delay_seconds=120,
    peak_window_seconds=60,
)


def fleets(needed: list[int], *, largest: int) -> dict[int, list[Met]]:
    """Ten requests per minute; a fleet meets those of a minute if it has what that needs."""
    return {
        size: [
            Met(60.0 * minute + second, 100 * replicas, is_met=size >= replicas)
            for minute, replicas in enumerate(needed)
            for second in range(10)
        ]
        for size in range(1, largest + 1)
    }


def test_peak_static_is_what_the_busiest_window_needs() -> None:
    assert peak_static(fleets([1, 2, 5, 3], largest=8), OBJECTIVE) == 5


def test_no_fleet_may_be_large_enough() -> None:
    assert peak_static(fleets([1, 9, 1], largest=8), OBJECTIVE) is None


@pytest.mark.parametrize(("missed", "enough"), [(1, True), (2, False)])
def test_a_window_may_miss_what_the_objective_allows(missed: int, enough: bool) -> None:
    requests = [Met(float(second), 1, is_met=second >= missed) for second in range(10)]

    assert peak_static({4: requests}, OBJECTIVE) == (4 if enough else None)


def test_each_window_needs_the_smallest_fleet_that_is_enough_in_it() -> None:
    assert windows_needed(fleets([1, 3, 2], largest=4), OBJECTIVE, until_seconds=180.0) == [1, 3, 2]


@pytest.mark.parametrize(("minutes", "meets"), [([4, 1, 4], True), ([4, 4], False), ([], False)])
def test_a_fleet_is_of_use_while_it_meets_the_objective_in_a_window_that_has_requests(
    minutes: list[int], meets: bool
) -> None:
    fleet = fleets(minutes, largest=3)[3]
    late = [Met(600.0, 1, is_met=False)]

    assert meets_a_window([*fleet, *late], OBJECTIVE) is meets


def test_a_window_without_requests_needs_one_replica() -> None:
    requests = {size: [Met(0.0, 1, is_met=size >= 3)] for size in (1, 2, 3)}

    assert windows_needed(requests, OBJECTIVE, until_seconds=120.0) == [3, 1]


@pytest.mark.parametrize(("delay_seconds", "replicas"), [(0, 1), (60, 1), (61, 3), (120, 3), (121, 4)])
def test_at_first_there_is_what_is_needed_before_a_replica_that_is_asked_for_is_ready(
    delay_seconds: int, replicas: int
) -> None:
    objective = replace(OBJECTIVE, start_delay_seconds=delay_seconds)

    assert needed_at_first([1, 3, 4, 5], objective) == replicas


@pytest.mark.parametrize(
    ("needed", "seconds"),
    [
        ([2, 2, 2], 360),
        # The second replica is started 120 s before it is needed.
        ([1, 1, 1, 2, 2], 300 + 120 + 120),
        # A lull of two minutes is as long as a start: the replica stays.
        ([2, 1, 1, 2], 240 + 240),
        # One of three minutes is longer.
        ([2, 1, 1, 1, 2], 300 + 60 + 120 + 60),
    ],
)
def test_a_clairvoyant_fleet_pays_for_starts_and_for_short_lulls(needed: list[int], seconds: float) -> None:
    assert clairvoyant_seconds(needed, OBJECTIVE) == seconds
