"""Requests that belong together: each prompt is the one before, its answer, and something new.

A session's first prompt begins with a system prompt that others share. Its number of calls is geometric. The
next one comes when the answer to the last one should be there, and a pause is over: as in a recorded trace,
no arrival depends on how fast the fleet answers.
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from warmfleet_simulator.traces.request import Segment, TraceRequest
from warmfleet_simulator.workloads.lengths import Lengths, Spread
from warmfleet_simulator.workloads.workload import Workload, request

MOST_OF_MEAN: Final = 10
"""No session has more than so many times the mean of calls: one in 20,000 would have."""
Calls = Annotated[float, msgspec.Meta(ge=1, le=1000)]


class SessionWorkload(Workload, frozen=True, kw_only=True):
    """Parameters that all workloads of sessions have."""

    token_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.05
    """How long an answer is taken to need, per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShape:
    """What sessions consist of."""

    system_prompts: int
    """Each session has one of them, all alike often."""
    system_tokens: int
    first_inputs: Lengths
    """What follows the system prompt in the first call."""
    later_inputs: Lengths
    """What follows the answer in each further call."""
    mean_calls: float
    pauses: Spread
    """Seconds from the answer to the next call."""


@dataclass(slots=True, order=True)
class _Session:
    next_seconds: float
    number: int
    """Of the session; decides between equal times."""
    calls_left: int = field(compare=False)
    context: tuple[Segment, ...] = field(compare=False)
    """What the next prompt begins with."""
    is_new: bool = field(compare=False, default=True)


def sessions(
    workload: SessionWorkload, shape: SessionShape, starts: Iterator[float]
) -> Iterator[TraceRequest]:
    """The requests of sessions that begin at `starts`, in the order of their arrivals.

    Kept are the sessions that have begun and not ended.
    """
    draw, outputs = workload.draws("sessions"), workload.lengths(workload.output_tokens, "outputs")
    open_sessions: list[_Session] = []
    starting = _started(0, next(starts), shape, draw)
    for number in range(workload.requests):
        if open_sessions and open_sessions[0] < starting:
            session = heapq.heappop(open_sessions)
        else:
            session = starting
            starting = _started(session.number + 1, next(starts), shape, draw)
        inputs = shape.first_inputs if session.is_new else shape.later_inputs
        prompt = (*session.context, Segment(shape.system_prompts + number, inputs.next()))
        call = request(number, session.next_seconds, prompt, outputs.next())
        yield call
        if session.calls_left > 1:
            session.is_new = False
            session.calls_left -= 1
            session.context = (*prompt, Segment(call.answer_id, call.output_tokens))
            session.next_seconds += call.output_tokens * workload.token_seconds + shape.pauses.next()
            heapq.heappush(open_sessions, session)


def _started(number: int, at_seconds: float, shape: SessionShape, draw: random.Random) -> _Session:
    system = Segment(draw.randrange(shape.system_prompts), shape.system_tokens)
    return _Session(at_seconds, number, _calls(shape.mean_calls, draw), (system,))


def _calls(mean: float, draw: random.Random) -> int:
    """Geometric, from 1."""
    if mean <= 1:
        return 1
    calls = 1 + int(math.log(1 - draw.random()) / math.log(1 - 1 / mean))
    return min(calls, round(mean * MOST_OF_MEAN))
