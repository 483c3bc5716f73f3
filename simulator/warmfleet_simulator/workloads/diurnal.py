"""Conversations about documents, over a day."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.workloads.arrivals import day
from warmfleet_simulator.workloads.lengths import Lengths, Spread
from warmfleet_simulator.workloads.sessions import SessionShape, sessions
from warmfleet_simulator.workloads.workload import Seconds, Tokens, Workload


class Diurnal(Workload, frozen=True, kw_only=True, tag="diurnal"):
    """People ask several questions about a document, more of them at noon than at night.

    The day has three hours: two minutes of it are sixteen of a real one. With T turns on average, F tokens of
    document and question, Q of a question, A of an answer and S of the system prompt, an infinite cache
    misses `(F + (T - 1) Q) / (T (S + F) + T (T - 1) (Q + A))` of all tokens, and what fills no block.
    """

    requests: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 19_440
    requests_per_second: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 1.8
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
    turns: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 5.0
    """Mean of a conversation's questions."""
    think_seconds: Seconds = 90.0
    """Mean from an answer to the next question."""
    token_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.05
    """How long an answer is taken to need, per token."""

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals."""
        variation = self.length_variation
        shape = SessionShape(
            system_prompts=1,
            system_tokens=self.system_tokens,
            first_inputs=Lengths(
                self.document_tokens + self.question_tokens, variation, self.draws("documents")
            ),
            later_inputs=Lengths(self.question_tokens, variation, self.draws("questions")),
            outputs=Lengths(self.output_tokens, variation, self.draws("outputs")),
            mean_calls=self.turns,
            token_seconds=self.token_seconds,
            pauses=Spread(self.think_seconds, variation, self.draws("pauses")),
        )
        starts = day(
            self.requests_per_second / self.turns,
            swing=self.swing,
            day_seconds=self.day_seconds,
            draw=self.draws("arrivals"),
        )
        return sessions(self, shape, starts)
