"""What a fleet would cost that knows the traffic: bounds for every autoscaler. Pure.

Both follow from fleets of a fixed size: of each size, which requests met the objective. Peak-static is the
smallest fleet that meets it in the busiest window, all the time. The clairvoyant fleet has in each window
as many replicas as the smallest fixed fleet that meets the objective in it, and knows that in advance; each
start costs the start delay, so it keeps a replica through a lull that is shorter. It is not exactly the
least: a fleet of fixed size enters a window with warmer caches and other queues than one that changes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warmfleet_simulator.scaling.objective import Objective


@dataclass(frozen=True, slots=True)
class Met:
    """A request of a fleet of fixed size."""

    arrival_seconds: float
    prompt_tokens: int
    is_met: bool


def peak_static(fleets: Mapping[int, Sequence[Met]], objective: Objective) -> int | None:
    """The fewest replicas that meet the objective in the busiest window; None if no fleet does.

    `fleets` has the outcomes of each size that was simulated. The busiest window is that with most tokens of
    prompts.
    """
    for replicas in sorted(fleets):
        if _meets(_in_busiest_window(fleets[replicas], objective), objective):
            return replicas
    return None


def peak_requests_per_second(requests: Sequence[Met], objective: Objective) -> float:
    """Arrivals in the busiest window."""
    return len(_in_busiest_window(requests, objective)) / objective.peak_window_seconds


def clairvoyant_seconds(needed: Sequence[int], objective: Objective) -> float:
    """Replica-seconds of a fleet that knows in advance what each window needs (`windows_needed`)."""
    length = objective.peak_window_seconds
    most, delay, seconds = max(needed, default=0), objective.start_delay_seconds, 0.0
    for level in range(1, most + 1):
        busy = [number for number, replicas in enumerate(needed) if replicas >= level]
        on = len(busy) * length
        starts = 1
        for before, after in itertools.pairwise(busy):
            lull = (after - before - 1) * length
            if lull <= delay:
                on += lull
            else:
                starts += 1
        # What is needed from the beginning on is there at the beginning.
        seconds += on + delay * (starts - (busy[0] == 0))
    return seconds


def windows_needed(
    fleets: Mapping[int, Sequence[Met]], objective: Objective, *, until_seconds: float
) -> list[int]:
    """Of each window the smallest fleet that meets the objective in it; at least 1, at most the largest."""
    length = objective.peak_window_seconds
    needed = [max(fleets)] * max(math.ceil(until_seconds / length), 1)
    for replicas in sorted(fleets, reverse=True):
        windows: list[list[Met]] = [[] for _ in needed]
        for request in fleets[replicas]:
            windows[min(int(request.arrival_seconds // length), len(needed) - 1)].append(request)
        for number, window in enumerate(windows):
            if _meets(window, objective):
                needed[number] = replicas
    return needed


def needed_at_first(needed: Sequence[int], objective: Objective) -> int:
    """The most that a window needs which begins before the start delay is over.

    No policy has a replica by then that it asked for: at the first arrival at the earliest.
    """
    windows = max(math.ceil(objective.start_delay_seconds / objective.peak_window_seconds), 1)
    return max(needed[:windows])


def meets_a_window(requests: Sequence[Met], objective: Objective) -> bool:
    """Whether the fleet with these `requests` meets the objective in at least one window that has some."""
    return any(_meets(window, objective) for window in _by_window(requests, objective).values())


def _in_busiest_window(requests: Sequence[Met], objective: Objective) -> Sequence[Met]:
    windows = _by_window(requests, objective)
    busiest = max(
        windows, key=lambda number: (sum(request.prompt_tokens for request in windows[number]), -number)
    )
    return windows[busiest]


def _by_window(requests: Sequence[Met], objective: Objective) -> dict[int, list[Met]]:
    """By the number of the window in which they arrive; without those that have none."""
    windows: dict[int, list[Met]] = {}
    for request in requests:
        windows.setdefault(int(request.arrival_seconds // objective.peak_window_seconds), []).append(request)
    return windows


def _meets(requests: Sequence[Met], objective: Objective) -> bool:
    """Whether enough of them are met; of none there are enough."""
    return 100 * sum(request.is_met for request in requests) >= objective.percent * len(requests)
