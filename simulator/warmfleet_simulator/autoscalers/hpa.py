"""The algorithm of Kubernetes' HorizontalPodAutoscaler, autoscaling/v2. Pure, but for `Hpa`, which remembers.

Source: kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale, "Algorithm details" and
"Configurable scaling behavior"; names and order of steps as in kubernetes/kubernetes,
pkg/controller/podautoscaler/{replica_calculator,horizontal}.go. Every `SYNC_SECONDS` a metric gives a number
of replicas; the highest and lowest of recent numbers keep a change back (stabilization), and policies
bound how much may change in a period.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SYNC_SECONDS: Final = 15.0
"""`--horizontal-pod-autoscaler-sync-period`."""
TOLERANCE: Final = 0.1
"""`--horizontal-pod-autoscaler-tolerance`: a ratio that is closer to 1 changes nothing."""
MAX_REPLICAS: Final = 1000
_ROUNDING: Final = 1e-9
"""Kubernetes counts in thousandths: 30 * 1.1 are 33 replicas, not 34."""


class Change(NamedTuple):
    """At most so many pods, or so many percent of them, in a period."""

    period_seconds: float
    pods: int = 0
    percent: int = 0


@dataclass(frozen=True, slots=True)
class Behavior:
    """`spec.behavior`, with its defaults. Of several policies that counts which allows most (`Max`)."""

    up: tuple[Change, ...] = (Change(15, pods=4), Change(15, percent=100))
    down: tuple[Change, ...] = (Change(15, percent=100),)
    up_stabilization_seconds: float = 0.0
    down_stabilization_seconds: float = 300.0


def by_pods(values: Sequence[float], *, unready: int, missing: int, replicas: int, target: float) -> int:
    """Replicas for a metric of each ready pod (type Pods).

    Pods that are not ready (`unready`) count as 0 when it would grow, and not at all otherwise; ready ones
    without a value (`missing`) as 0 when it would grow, as `target` when it would shrink.
    """
    if not values:
        return replicas
    ratio = sum(values) / len(values) / target
    if not missing and not (unready and ratio > 1):
        return replicas if _tolerated(ratio) else _ceil(ratio * len(values))
    assumed = [*values, *[0.0 if ratio > 1 else target] * (missing if ratio != 1 else 0)]
    if ratio > 1:
        assumed += [0.0] * unready
    damped = sum(assumed) / len(assumed) / target
    if _tolerated(damped) or (ratio > 1) != (damped > 1):
        return replicas
    wanted = _ceil(damped * len(assumed))
    return replicas if (damped > 1) == (wanted < replicas) else wanted


def by_value(value: float, *, ready: int, replicas: int, target: float) -> int:
    """Replicas for one value of the fleet (type External or Object, `Value`), in relation to ready pods."""
    ratio = value / target
    return replicas if _tolerated(ratio) else _ceil(ratio * ready)


def by_average(total: float, *, replicas: int, target: float) -> int:
    """Replicas for a total that they share (type External, `AverageValue`), pods that start among them."""
    if _tolerated(total / (target * replicas)):
        return replicas
    return _ceil(total / target)


class Hpa:
    """Turns the number that a metric gives into the one that is set; remembers both."""

    def __init__(self, behavior: Behavior | None = None) -> None:
        self._behavior = behavior or Behavior()
        self._next_sync = 0.0
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def is_due(self, now_seconds: float) -> bool:
        """Whether a new sync period has begun. True once in each."""
        if now_seconds < self._next_sync:
            return False
        self._next_sync = max(self._next_sync, now_seconds - SYNC_SECONDS) + SYNC_SECONDS
        return True

    def replicas(self, recommended: int, *, replicas: int, now_seconds: float) -> int:
        """What is set, where a metric recommends `recommended` and `replicas` are wanted so far."""
        stable = self._stabilized(recommended, replicas, now_seconds)
        allowed = min(max(self._limited(stable, replicas, now_seconds), 1), MAX_REPLICAS)
        if allowed != replicas:
            self._changes.append((now_seconds, allowed - replicas))
        return allowed

    def _stabilized(self, recommended: int, replicas: int, now_seconds: float) -> int:
        behavior = self._behavior
        if not self._recommended:
            self._recommended.append((now_seconds, replicas))

        def within(seconds: float) -> list[int]:
            return [number for at, number in self._recommended if at > now_seconds - seconds]

        up = min([recommended, *within(behavior.up_stabilization_seconds)])
        down = max([recommended, *within(behavior.down_stabilization_seconds)])
        longest = max(behavior.up_stabilization_seconds, behavior.down_stabilization_seconds)
        self._recommended = [kept for kept in self._recommended if kept[0] > now_seconds - longest]
        self._recommended.append((now_seconds, recommended))
        return min(max(replicas, up), down)

    def _limited(self, wanted: int, replicas: int, now_seconds: float) -> int:
        behavior = self._behavior
        longest = max(change.period_seconds for change in (*behavior.up, *behavior.down))
        self._changes = [kept for kept in self._changes if kept[0] > now_seconds - longest]

        def at_period_start(change: Change) -> int:
            since = now_seconds - change.period_seconds
            return replicas - sum(difference for at, difference in self._changes if at > since)

        if wanted > replicas:
            most = max(_after(change, at_period_start(change), 1, _ceil) for change in behavior.up)
            return min(wanted, max(most, replicas))
        if wanted < replicas:
            least = min(_after(change, at_period_start(change), -1, math.floor) for change in behavior.down)
            return max(wanted, min(least, replicas))
        return replicas


def _after(change: Change, replicas: int, sign: int, whole: Callable[[float], int]) -> int:
    """What `replicas` may become at most, or at least."""
    if change.pods:
        return replicas + sign * change.pods
    return whole(replicas * (100 + sign * change.percent) / 100)


def _tolerated(ratio: float) -> bool:
    return abs(ratio - 1) <= TOLERANCE + _ROUNDING


def _ceil(number: float) -> int:
    return math.ceil(number - _ROUNDING)
