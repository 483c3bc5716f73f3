"""Searches the setting of a policy that meets an objective for the fewest replica-seconds. Pure.

Of every setting a simulation is asked for, with limits beyond which its result is known to be of no use: more
requests than the objective allows have missed it, or it costs more than the best setting so far. A setting
that is stopped would have been worse for certain. Where none meets the objective, the setting with the
highest percentage is the best, and all are simulated again, now limited by the best one's misses.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from warmfleet_simulator.report import Report, Stopped
from warmfleet_simulator.simulation import Limits


class Trial(NamedTuple):
    """A setting to simulate."""

    setting: str
    limits: Limits


class GridRow(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one setting."""

    setting: str
    replica_seconds: float
    """More than that if it was stopped."""
    objective_percent: float
    """Less than that if it was stopped because of misses; unknown, and 0, if because of cost."""
    stopped: Stopped
    stopped_at_seconds: float | None
    """Of the trace."""


@dataclass(frozen=True, slots=True)
class Grid:
    """All settings in the order of the search, and the best one."""

    rows: Sequence[GridRow]
    best: str
    report: Report
    """Of the best one."""


Search = Generator[Trial, Report, Grid]
"""Yields what to simulate, receives its report, returns the grid."""


def best_setting(settings: Sequence[str], *, percent: int, requests: int) -> Search:
    """The search among `settings`, where `percent` of so many requests must meet the objective."""
    allowed = allowed_misses(requests, percent)
    rows: dict[str, GridRow] = {}
    best: tuple[str, Report] | None = None
    for setting in settings:
        report = yield Trial(setting, Limits(allowed, best[1].replica_seconds if best else None))
        rows[setting] = _row(setting, report, allowed, requests)
        if not report.stopped and (best is None or report.replica_seconds < best[1].replica_seconds):
            best = setting, report
    if best is not None:
        return Grid([rows[setting] for setting in settings], *best)
    return (yield from _most_met(settings, rows, requests))


def _most_met(settings: Sequence[str], rows: Mapping[str, GridRow], requests: int) -> Search:
    """The setting with the fewest misses; of two the one that costs less. The last one is tried first."""
    found = dict(rows)
    best: tuple[str, Report] | None = None
    for setting in reversed(settings):
        allowed = requests if best is None else _missed(best[1])
        report = yield Trial(setting, Limits(allowed))
        found[setting] = _row(setting, report, allowed, requests)
        if not report.stopped and (best is None or _rank(report) < _rank(best[1])):
            best = setting, report
    assert best is not None, "the first one has no limit"
    return Grid([found[setting] for setting in settings], *best)


def allowed_misses(requests: int, percent: int) -> int:
    """Most requests that may miss the objective."""
    return requests - math.ceil(requests * percent / 100)


def _missed(report: Report) -> int:
    return report.requests - report.met


def _rank(report: Report) -> tuple[int, float]:
    return _missed(report), report.replica_seconds


def _row(setting: str, report: Report, allowed: int, requests: int) -> GridRow:
    percents = {
        Stopped.NO: report.objective_percent or 0.0,
        Stopped.MISSED: 100 * (requests - allowed) / requests,
        Stopped.COST: 0.0,
    }
    return GridRow(
        setting=setting,
        replica_seconds=report.replica_seconds,
        objective_percent=percents[report.stopped],
        stopped=report.stopped,
        stopped_at_seconds=report.virtual_seconds if report.stopped else None,
    )
