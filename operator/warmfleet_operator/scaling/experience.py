"""How far a demand was seen to move by itself: what chance brings of a load that was watched long enough.

`chance` predicts the highest demand of a day from the number of requests, as if each came independently of
the others. Where requests are few and slow it knows little, and predicts much until they have become many;
and clients that each wait for their answer, whose load does not vary at all, are predicted to vary as others.

So the demand is watched, too, for `SPANS` windows of stabilization, by its highest and its lowest moment. A
day may bring it as far above the highest as that is above the middle of both, and no further: of a normal
distribution the highest of n independent moments lies z(n) deviations above the mean, and 2 z(n) exceeds
z(48 n) for any n from ten on; 48 times those windows are a day. And the mean that `chance` starts from is no
higher than the highest moment of the last two windows: it may still be that of a load which has fallen. The
windows are the policy's, so that one with short windows believes sooner that it has.
"""

from typing import Final

import msgspec

SPANS: Final = 6
"""Windows of stabilization: half an hour with the default, the longest time of a mean of `chance`."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The demand within one window, in percent of what one replica takes."""

    since_seconds: float
    until_seconds: float
    highest: int
    lowest: int


def watched(
    spans: tuple[Span, ...], percent: int, now_seconds: float, *, window_seconds: float, gap_seconds: float
) -> tuple[Span, ...]:
    """The spans with another moment, oldest first.

    Args:
        spans: before it.
        percent: the demand.
        now_seconds: of the moment.
        window_seconds: of one span.
        gap_seconds: after a longer time without a moment the load has not been watched.
    """
    if spans and now_seconds - spans[-1].until_seconds > gap_seconds:
        spans = ()
    if not spans or now_seconds - spans[-1].since_seconds >= window_seconds:
        moment = Span(since_seconds=now_seconds, until_seconds=now_seconds, highest=percent, lowest=percent)
        return (*spans, moment)[-SPANS:]
    newest = spans[-1]
    within = Span(
        since_seconds=newest.since_seconds,
        until_seconds=now_seconds,
        highest=max(newest.highest, percent),
        lowest=min(newest.lowest, percent),
    )
    return (*spans[:-1], within)


def late_percent(spans: tuple[Span, ...]) -> tuple[float, float] | None:
    """The highest demand of the last window and of the one before it, and since when; None before two."""
    if len(spans) < 2:
        return None
    before, newest = spans[-2:]
    return max(before.highest, newest.highest), before.since_seconds


def highest_percent(spans: tuple[Span, ...]) -> float | None:
    """The highest demand that a day of this load is likely to bring; None where it is not known from them."""
    if len(spans) < SPANS:
        return None
    highest, lowest = max(span.highest for span in spans), min(span.lowest for span in spans)
    return highest + (highest - lowest) / 2
