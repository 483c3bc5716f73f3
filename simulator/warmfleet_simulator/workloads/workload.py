"""What all generated workloads have."""

import random
from typing import Annotated, Final

import msgspec

from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest
from warmfleet_simulator.workloads.lengths import Lengths

MAX_REQUESTS: Final = 10**9
"""Fewer than there are ids for segments and answers."""
Requests = Annotated[int, msgspec.Meta(ge=1, le=MAX_REQUESTS)]
PerSecond = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=10_000_000)]


class Workload(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=False,
    rename="camel",
    tag_field="name",
):
    """Parameters that all workloads have; equal ones give equal requests."""

    requests: Requests = 10_000
    requests_per_second: PerSecond = 10.0
    """Mean over a long time."""
    output_tokens: Tokens = 200
    """Mean of an answer."""
    length_variation: Annotated[float, msgspec.Meta(ge=0, le=4)] = 1.0
    """Standard deviation of lengths as a multiple of their mean; 0 makes all equal."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0

    def draws(self, purpose: str) -> random.Random:
        """Random numbers for one purpose: what another one draws does not change them."""
        return random.Random(f"{self.seed} {purpose}")  # noqa: S311 - reproducible, no secret

    def lengths(self, mean_tokens: int, purpose: str) -> Lengths:
        """Lengths with the workload's variation, drawn for one purpose."""
        return Lengths(mean_tokens, self.length_variation, self.draws(purpose))


def request(number: int, at_seconds: float, prompt: tuple[Segment, ...], output_tokens: int) -> TraceRequest:
    """Request `number` of a workload, from 0; its answer has an id of its own."""
    return TraceRequest(
        arrival_seconds=at_seconds,
        prompt=prompt,
        output_tokens=output_tokens,
        answer_id=FIRST_ANSWER_ID + number,
    )
