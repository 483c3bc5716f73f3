"""The search for a policy's best setting, against trying all settings to their end."""

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import pytest

from warmfleet_simulator.grid_search import Grid, Trial, allowed_misses, best_setting
from warmfleet_simulator.replica.token_gaps import TokenGaps
from warmfleet_simulator.report import Percentiles, Report, Stopped, inter_token_ms
from warmfleet_simulator.scaling.pods import PodSeconds

REQUESTS = 200


class Setting(NamedTuple):
    """What a whole simulation of it would bring."""

    missed: int
    seconds: float


def report(missed: int, seconds: float, stopped: Stopped = Stopped.NO, requests: int = REQUESTS) -> Report:
    return Report(
        routing="LowestCost",
        replicas=1,
        most_replicas=1,
        replica_seconds=seconds,
        pod_seconds=PodSeconds(0.0, seconds, 0.0),
        stopped=stopped,
        objective_percent=100 * (requests - missed) / requests,
        requests=requests,
        met=requests - missed,
        answered=requests,
        refused={},
        prompt_tokens=0,
        cached_tokens=0,
        hit_rate=0.0,
        missed_tokens={},
        missed_replica_seconds={},
        output_tokens=0,
        first_token_ms=Percentiles(None, None, None),
        inter_token_ms=inter_token_ms(TokenGaps()),
        evicted_blocks=0,
        steps=0,
        virtual_seconds=seconds,
        wall_seconds=0.0,
        timeline=[],
        changes=[],
        first_arrival_seconds=1.0,
        window_seconds=60.0,
        windows=[],
    )


def simulated(setting: Setting, trial: Trial) -> Report:
    """Ends half way, with what has been missed and spent by then, once a limit is exceeded."""
    limits = trial.limits
    if limits.missed_requests is not None and setting.missed > limits.missed_requests:
        return report(limits.missed_requests + 1, setting.seconds / 2, Stopped.MISSED, REQUESTS // 2)
    if limits.replica_seconds is not None and setting.seconds > limits.replica_seconds:
        return report(0, limits.replica_seconds + 1, Stopped.COST, REQUESTS // 2)
    return report(setting.missed, setting.seconds)


def search(settings: Mapping[str, Setting], percent: int) -> tuple[Grid, int]:
    """The grid, and how many simulations were asked for."""
    work = best_setting(list(settings), percent=percent, requests=REQUESTS)
    trial, trials = next(work), 1
    while True:
        try:
            trial = work.send(simulated(settings[trial.setting], trial))
            trials += 1
        except StopIteration as end:
            grid: Grid = end.value
            return grid, trials


def best_of_all(settings: Mapping[str, Setting], percent: int) -> Setting:
    enough = [one for one in settings.values() if one.missed <= allowed_misses(REQUESTS, percent)]
    if enough:
        return min(enough, key=lambda one: one.seconds)
    return min(settings.values(), key=lambda one: (one.missed, one.seconds))


def test_the_search_finds_what_trying_all_would() -> None:
    random = Random(7)
    for _ in range(300):
        settings = {
            str(number): Setting(random.randrange(0, 40), random.randrange(10, 30) * 100.0)
            for number in range(random.randrange(1, 6))
        }
        grid, trials = search(settings, 97)
        assert settings[grid.best] == best_of_all(settings, 97)
        assert grid.report.replica_seconds == settings[grid.best].seconds
        assert [row.setting for row in grid.rows] == list(settings)
        assert trials <= 2 * len(settings)


def test_a_setting_that_cannot_win_is_stopped_and_shown_as_such() -> None:
    settings = {"a": Setting(50, 1000.0), "b": Setting(2, 2000.0), "c": Setting(1, 3000.0)}
    grid, trials = search(settings, 97)
    a, b, c = grid.rows
    assert (grid.best, trials) == ("b", 3)
    assert (a.stopped, a.replica_seconds, a.objective_percent) == (Stopped.MISSED, 500.0, 97.0)
    assert (b.stopped, b.replica_seconds, b.objective_percent) == (Stopped.NO, 2000.0, 99.0)
    assert [row.stopped_at_seconds for row in grid.rows] == [500.0, None, 2001.0]
    assert (c.stopped, c.replica_seconds) == (Stopped.COST, 2001.0)


def test_where_none_is_enough_the_one_that_misses_least_is_found() -> None:
    settings = {"a": Setting(50, 1000.0), "b": Setting(20, 2000.0), "c": Setting(20, 3000.0)}
    grid, trials = search(settings, 97)
    assert (grid.best, grid.report.objective_percent, trials) == ("b", 90.0, 6)
    assert [row.stopped for row in grid.rows] == [Stopped.MISSED, Stopped.NO, Stopped.NO]
    assert grid.rows[0].objective_percent == 90.0


@pytest.mark.parametrize(
    ("requests", "percent", "allowed"),
    [(100, 97, 3), (101, 97, 3), (12_031, 97, 360), (1, 97, 0), (10, 50, 5)],
)
def test_as_many_may_miss_as_leave_the_percentage(requests: int, percent: int, allowed: int) -> None:
    assert allowed_misses(requests, percent) == allowed
    assert 100 * (requests - allowed) >= percent * requests > 100 * (requests - allowed - 1)
