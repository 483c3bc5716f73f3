"""What became of a fleet that was asked for more than it can do: the figures of `overload.py`.

Everything here follows from what was sent and seen; nothing is measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.event_client import Answer
from warmfleet_cli.bench.figures import Target, mean, median, percentile
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.wait_queue import BURST_REQUESTS

ANSWER_TOKENS: Final = 16
SETTLING: Final = 1 / 3
"""Part of a phase that is not counted: the queue fills, caches warm up."""
SAMPLE_SECONDS: Final = 0.1
STANDING_SECONDS: Final = 1.0
MIN_GOODPUT_RATIO: Final = 0.9
MAX_REFUSAL_MS: Final = 50.0
MAX_RECOVERY_SECONDS: Final = 10.0
RECOVERED_RATIO: Final = 2.0
"""To the first token, over the time without other requests."""
NORMAL_FIRST_TOKEN_RATIO: Final = 1.5
HELD_MARGIN: Final = 1.5
"""The drain rate that bounds the queue is an estimate."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request; times are seconds on the loop's clock."""

    due: float
    answer: Answer
    ended: float

    @property
    def refused(self) -> bool:
        return self.answer.status == 429

    @property
    def latency_seconds(self) -> float:
        """From when it was due to the last byte of what came."""
        return self.ended - self.due

    @property
    def first_token_ms(self) -> float | None:
        """From when it was due, too."""
        answer = self.answer
        if answer.first_token_seconds is None:
            return None
        return (self.latency_seconds - answer.total_seconds + answer.first_token_seconds) * 1e3


@dataclass(frozen=True, slots=True)
class Sample:
    """What the router held at one moment."""

    at: float
    held_requests: int
    worker_waiting: int
    worker_running: int
    others_cpu_seconds: float
    """What processes that do not belong to the benchmark have used so far."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which requests arrived at one rate."""

    started: float
    ended: float

    @property
    def counted_from(self) -> float:
        return self.started + (self.ended - self.started) * SETTLING


@dataclass(frozen=True, slots=True)
class Watched:
    """Everything that was sent and seen."""

    sent: Sequence[Sent]
    samples: Sequence[Sample]

    def goodput(self, phase: Phase) -> float:
        """Whole answers per second that ended in the part of `phase` that counts."""
        since, until = phase.counted_from, phase.ended
        return sum(one.answer.complete and since <= one.ended < until for one in self.sent) / (until - since)

    def due(self, since: float, until: float) -> list[Sent]:
        return [one for one in self.sent if since <= one.due < until]

    def first_token_ms(self, since: float, until: float) -> list[float]:
        """Of what was due in that time and got an answer."""
        return [ms for one in self.due(since, until) if (ms := one.first_token_ms) is not None]

    def late(self, phase: Phase, *, limit_ms: float) -> list[Sent]:
        """Of what was due in `phase`, all that got no first token within `limit_ms`, or no whole answer."""
        return [
            one
            for one in self.due(phase.started, phase.ended)
            if not one.answer.complete or one.first_token_ms is None or one.first_token_ms > limit_ms
        ]

    def others_cores(self, phase: Phase) -> float:
        """Cores that processes which do not belong to the benchmark took in `phase`, on average."""
        seen = [one for one in self.samples if phase.started <= one.at < phase.ended]
        if len(seen) < 2:
            return 0.0
        first, last = seen[0], seen[-1]
        return (last.others_cpu_seconds - first.others_cpu_seconds) / (last.at - first.at)

    def most_held(self, phase: Phase) -> int:
        held = (one.held_requests for one in self.samples if phase.started <= one.at < phase.ended)
        return max(held, default=0)

    def seats_taken(self, phase: Phase) -> float:
        """Sequences that ran, on average over the part of `phase` that counts."""
        since, until = phase.counted_from, phase.ended
        return mean([one.worker_running for one in self.samples if since <= one.at < until])

    def queue_gone_after_seconds(self, phase: Phase, *, normal_held: int) -> float:
        """From the start of `phase` until, for good, no queue stands and no request is refused.

        A queue stands while more than `normal_held` wait for at least `STANDING_SECONDS` on end: that one
        request of a random stream waits for another's prefill is as normal before an overload as after it.
        """
        ends = [one.due for one in self.sent if one.refused]
        since: float | None = None
        for sample in self.samples:
            if sample.held_requests <= normal_held:
                since = None
                continue
            since = sample.at if since is None else since
            if sample.at - since >= STANDING_SECONDS:
                ends.append(sample.at)
        last = max((at for at in ends if phase.started <= at < phase.ended), default=None)
        return 0.0 if last is None else last + SAMPLE_SECONDS - phase.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """What was measured."""

    capacity_per_second: float
    """Whole answers per second, closed loop."""
    requests: int
    answered: int
    refused: int
    failed: int
    """Neither answered whole nor refused with 429."""
    goodput_per_second: float
    refusal_p50_ms: float
    refusal_p95_ms: float
    retry_after_seconds: tuple[int, int]
    """Least and most of the seconds that refusals named."""
    seats_taken: tuple[float, float]
    """On average, at capacity and in the overload: what the goodput should be alike for."""
    most_held: int
    most_waiting_at_workers: int
    first_token_p50_ms: dict[str, float]
    """Before, during and after; and after it was normal again."""
    first_token_p95_ms: dict[str, float]
    lone_first_token_ms: float
    """Median of requests one after the other, at the start or at the end, whichever is less."""
    late_before: int
    """Of those before the overload, beyond twice that time."""
    late_after: list[tuple[float, float | None]]
    """When they were due, in seconds after the overload, and their first token in ms, if they got one."""
    queue_gone_after_seconds: float
    joined_answers: int
    """Those in which two tokens came together: one could not be sent as text, or a process had to wait."""
    others_cores: dict[str, float]
    """Cores that other processes took before, during and after."""

    @property
    def recovered_after_seconds(self) -> float:
        """From the end of the overload until the last request that was late."""
        return max((due for due, _ in self.late_after), default=0.0)

    def targets(self, factor: float) -> list[Target]:
        held = self.capacity_per_second * AdmissionSettings().max_wait_seconds * HELD_MARGIN + BURST_REQUESTS
        slower = self.first_token_p50_ms["recovered"] / self.first_token_p50_ms["before"]
        limits = (
            ("neither answered nor refused", self.failed, 0, ""),
            ("median time to a refusal", self.refusal_p50_ms, MAX_REFUSAL_MS, " ms"),
            ("most requests held", self.most_held, math.ceil(held), ""),
            ("recovered after", self.recovered_after_seconds, MAX_RECOVERY_SECONDS, " s"),
            ("first token from then on, over that before", slower, NORMAL_FIRST_TOKEN_RATIO, ""),
        )
        ratio = self.goodput_per_second / self.capacity_per_second
        return [
            Target(f"goodput at {factor:g} x capacity, over the peak", ratio, MIN_GOODPUT_RATIO),
            *(
                Target(name, measured, limit, at_least=False, unit=unit)
                for name, measured, limit, unit in limits
            ),
        ]

    def lines(self) -> list[str]:
        least, most = self.retry_after_seconds
        first_token = ", ".join(
            f"{phase} {self.first_token_p50_ms[phase]:.0f}/{self.first_token_p95_ms[phase]:.0f}"
            for phase in self.first_token_p50_ms
        )
        answered, refused, failed = self.answered, self.refused, self.failed
        since = ", ".join(
            f"at {due:.1f} s " + ("without an answer" if ms is None else f"{ms:.0f} ms")
            for due, ms in self.late_after
            if due > self.queue_gone_after_seconds
        )
        others = ", ".join(f"{phase} {cores:.2f}" for phase, cores in self.others_cores.items())
        return [
            f"capacity {_rate(self.capacity_per_second)}",
            f"overload: {self.requests} requests, {answered} answered, {refused} refused, {failed} failed",
            f"goodput in it: {_rate(self.goodput_per_second)}",
            f"refusals: p50/p95 {self.refusal_p50_ms:.1f}/{self.refusal_p95_ms:.1f} ms to their last byte",
            f"Retry-After: {least} to {most} s",
            f"seats taken: {self.seats_taken[0]:.2f} at capacity, {self.seats_taken[1]:.2f} in the overload",
            f"held at most {self.most_held}, waiting at the workers at most {self.most_waiting_at_workers}",
            f"time to first token p50/p95 in ms: {first_token}; alone {self.lone_first_token_ms:.0f}",
            f"later than twice that: {self.late_before} before and {len(self.late_after)} after the overload",
            f"no queue from {self.queue_gone_after_seconds:.1f} s after the overload",
            f"late since then: {since or 'none'}",
            f"answers in which two tokens came together: {self.joined_answers}",
            f"cores that other processes took: {others}",
        ]


def _rate(per_second: float) -> str:
    return f"{per_second:.2f} requests/s, {per_second * ANSWER_TOKENS:.0f} generated tokens/s"


def summary(
    watched: Watched, lone: tuple[Phase, Phase], capacity: Phase, phases: tuple[Phase, Phase, Phase]
) -> Overload:
    """The figures of one run; `phases` are before, in and after the overload."""
    before, during, after = phases
    asked = watched.due(during.started, during.ended)
    refusals = [one for one in asked if one.refused]
    answered = sum(one.answer.complete for one in asked)
    refusal_ms = [one.latency_seconds * 1e3 for one in refusals]
    waits = [one.answer.retry_after_seconds or 0 for one in refusals]
    recovered = after.started + MAX_RECOVERY_SECONDS
    spans = {
        "before": (before.started, before.ended),
        "during": (during.started, during.ended),
        "after": (after.started, after.ended),
        "recovered": (recovered, after.ended),
    }
    # What disturbs one of them would make room for late requests.
    lone_ms = min(median(watched.first_token_ms(one.started, one.ended)) for one in lone)
    limit_ms = lone_ms * RECOVERED_RATIO
    first_tokens = {name: watched.first_token_ms(*span) for name, span in spans.items()}
    return Overload(
        capacity_per_second=watched.goodput(capacity),
        requests=len(asked),
        answered=answered,
        refused=len(refusals),
        failed=len(asked) - answered - len(refusals),
        goodput_per_second=watched.goodput(during),
        refusal_p50_ms=median(refusal_ms),
        refusal_p95_ms=percentile(refusal_ms, 95),
        retry_after_seconds=(min(waits, default=0), max(waits, default=0)),
        seats_taken=(watched.seats_taken(capacity), watched.seats_taken(during)),
        most_held=watched.most_held(during),
        most_waiting_at_workers=max((one.worker_waiting for one in watched.samples), default=0),
        first_token_p50_ms={name: median(values) for name, values in first_tokens.items()},
        first_token_p95_ms={name: percentile(values, 95) for name, values in first_tokens.items()},
        lone_first_token_ms=lone_ms,
        late_before=len(watched.late(before, limit_ms=limit_ms)),
        late_after=[
            (one.due - after.started, one.first_token_ms) for one in watched.late(after, limit_ms=limit_ms)
        ],
        queue_gone_after_seconds=watched.queue_gone_after_seconds(
            after, normal_held=watched.most_held(before)
        ),
        joined_answers=sum(one.answer.complete and one.answer.tokens < ANSWER_TOKENS for one in watched.sent),
        others_cores={
            name: watched.others_cores(phase)
            for name, phase in (("before", before), ("during", during), ("after", after))
        },
    )
