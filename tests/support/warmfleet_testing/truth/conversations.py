"""A seeded workload: conversations of several turns that share system prompts.

Each turn's prompt is the whole conversation so far, with the answers in it, and a new message. There is more
of it than a few workers keep cached, so that blocks are evicted and computed again.
"""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from warmfleet_simulator.traces.request import Segment, TraceRequest
from warmfleet_testing.truth.letters import drawn_text, token_ids_of


class TextRequest(TraceRequest, frozen=True, gc=False, kw_only=True):
    """A request of a trace with its text, which a live fleet and a simulated one get alike.

    `answer_id` is the id of each token of the answer.
    """

    text: str

    def token_ids(self) -> "array[int]":
        return array("I", token_ids_of(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked in `seconds`; lengths are drawn evenly between the two numbers, in tokens."""

    seconds: float
    requests_per_second: float
    is_even: bool = False
    """Whether all requests are as far apart; otherwise they are independent (Poisson)."""
    open_conversations: int = 48
    system_prompts: int = 12
    system_tokens: int = 800
    message_tokens: tuple[int, int] = (20, 300)
    answer_tokens: tuple[int, int] = (4, 120)
    longest_prompt_tokens: int = 2400
    """A conversation that is longer ends, and another one begins."""
    pause_seconds: float = 8.0
    """From one turn of a conversation to the next, at least: most answers have ended by then."""
    seed: int = 0


@dataclass(slots=True)
class _Conversation:
    text: str
    next_at: float = 0.0


def requests_of(workload: Workload) -> Iterator[TextRequest]:
    """The requests in the order of their arrivals."""
    draw = random.Random(workload.seed)
    systems = [drawn_text(draw, workload.system_tokens) for _ in range(workload.system_prompts)]
    conversations = [_Conversation(draw.choice(systems)) for _ in range(workload.open_conversations)]
    at, rate = 0.0, workload.requests_per_second
    while (at := at + (1 / rate if workload.is_even else draw.expovariate(rate))) < workload.seconds:
        paused = [place for place, other in enumerate(conversations) if other.next_at <= at]
        if not paused:
            continue
        place = draw.choice(paused)
        if len(conversations[place].text) > workload.longest_prompt_tokens:
            conversations[place] = _Conversation(draw.choice(systems))
        conversation = conversations[place]
        conversation.text += drawn_text(draw, draw.randint(*workload.message_tokens))
        letter, answer_tokens = drawn_text(draw, 1), draw.randint(*workload.answer_tokens)
        yield TextRequest(
            arrival_seconds=at,
            prompt=(Segment(0, len(conversation.text)),),
            output_tokens=answer_tokens,
            answer_id=token_ids_of(letter)[0],
            text=conversation.text,
        )
        conversation.text += letter * answer_tokens
        conversation.next_at = at + workload.pause_seconds
