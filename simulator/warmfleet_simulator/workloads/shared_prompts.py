"""Traffic whose prompts begin with one of a few system prompts."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated

import msgspec

from warmfleet_simulator.traces.request import Segment, TraceRequest
from warmfleet_simulator.workloads.arrivals import poisson
from warmfleet_simulator.workloads.workload import Tokens, Workload, request


class SharedPrompts(Workload, frozen=True, kw_only=True, tag="shared"):
    """Questions behind system prompts of unequal popularity, at a constant rate.

    An infinite cache hits `system_tokens / (system_tokens + question_tokens)` of all tokens, but for the
    first use of each system prompt, and for the end of it that fills no block.
    """

    system_prompts: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 20
    system_tokens: Tokens = 1500
    """Of each."""
    popularity_exponent: Annotated[float, msgspec.Meta(ge=0, le=4)] = 1.0
    """The k-th most popular one is used in proportion to k to the minus this (Zipf); 0 uses all alike."""
    question_tokens: Tokens = 500
    """Mean of what follows the system prompt; no two questions share a token."""

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals."""
        arrivals = poisson(self.requests_per_second, self.draws("arrivals"))
        questions = self.lengths(self.question_tokens, "questions")
        outputs = self.lengths(self.output_tokens, "outputs")
        prompts = range(self.system_prompts)
        popularity = list(accumulate((rank + 1) ** -self.popularity_exponent for rank in prompts))
        choice = self.draws("system prompts")
        for number in range(self.requests):
            (system,) = choice.choices(prompts, cum_weights=popularity)
            question = Segment(self.system_prompts + number, questions.next())
            prompt = (Segment(system, self.system_tokens), question)
            yield request(number, next(arrivals), prompt, outputs.next())
