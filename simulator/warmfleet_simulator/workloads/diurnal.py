"""Conversations about documents, over a day."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.workloads.arrivals import day
from warmfleet_simulator.workloads.lengths import Spread
from warmfleet_simulator.workloads.sessions import Calls, SessionShape, SessionWorkload, sessions
from warmfleet_simulator.workloads.workload import PerSecond, Requests, Seconds, Tokens


class Diurnal(SessionWorkload, frozen=True, kw_only=True, tag="diurnal"):
    """People ask several questions about a document, more of them at noon than at night.

    The day has three hours: two minutes of it are sixteen of a real one. With T turns on average, F tokens of
    document and question, Q of a question, A of an answer and S of the system prompt, an infinite cache
    misses `(F + (T - 1) Q) / (T (S + F) + T (T - 1) (Q + A))` of all tokens, and what fills no block.
    """

    requests: Requests = 19_440
    requests_per_second: PerSecond = 1.8
    """Mean over a day."""
    output_tokens: Tokens = 300
    day_seconds: Seconds = 10_800.0
    """The rate is a sine; it begins at its minimum, and peaks after half of the day."""
    swing: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.7
    """The rate's peak is so much above the mean, as a share of it, and the minimum so much below."""
    system_tokens: Tokens = 1000
    """Of the system prompt, which all share."""
    document_tokens: Tokens = 8000
    """Mean of what a conversation is about."""
    question_tokens: Tokens = 200
    """Mean of each question."""
    turns: Calls = 5.0
    """Mean of a conversation's questions."""
    think_seconds: Seconds = 90.0
    """Mean from an answer to the next question."""

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals."""
        shape = SessionShape(
            system_prompts=1,
            system_tokens=self.system_tokens,
            first_inputs=self.lengths(self.document_tokens + self.question_tokens, "documents"),
            later_inputs=self.lengths(self.question_tokens, "questions"),
            mean_calls=self.turns,
            pauses=Spread(self.think_seconds, self.length_variation, self.draws("pauses")),
        )
        starts = day(
            self.requests_per_second / self.turns,
            swing=self.swing,
            day_seconds=self.day_seconds,
            draw=self.draws("arrivals"),
        )
        return sessions(self, shape, starts)
