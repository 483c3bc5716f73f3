"""Times of arrivals in seconds, without end."""

import math
import random
from collections.abc import Iterator


def poisson(per_second: float, draw: random.Random) -> Iterator[float]:
    """Independent arrivals at a constant rate."""
    at = 0.0
    while True:
        at += draw.expovariate(per_second)
        yield at


def bursts(
    per_second: float,
    *,
    factor: float,
    burst_seconds: float,
    calm_seconds: float,
    draw: random.Random,
) -> Iterator[float]:
    """Arrivals whose rate is `factor` times higher in bursts than in the calm between them.

    A Markov-modulated Poisson process of two states (Fischer and Meier-Hellstern 1993): bursts and calms have
    exponential lengths with these means. `per_second` is the mean over all, and the first state is calm.
    """
    calm_rate = per_second * (calm_seconds + burst_seconds) / (calm_seconds + factor * burst_seconds)
    begins = 0.0
    while True:
        for rate, seconds in ((calm_rate, calm_seconds), (calm_rate * factor, burst_seconds)):
            ends = begins + draw.expovariate(1 / seconds)
            at = begins + draw.expovariate(rate)
            while at < ends:
                yield at
                at += draw.expovariate(rate)
            begins = ends


def day(per_second: float, *, swing: float, day_seconds: float, draw: random.Random) -> Iterator[float]:
    """Arrivals whose rate is a sine: `1 - swing` times `per_second` at first, `1 + swing` after half a day.

    A Poisson process at the highest rate, of which each arrival is kept by chance (Lewis and Shedler 1979).
    """
    for at in poisson(per_second * (1 + swing), draw):
        rate = 1 - swing * math.cos(2 * math.pi * at / day_seconds)
        if draw.random() * (1 + swing) < rate:
            yield at
