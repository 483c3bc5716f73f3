"""What all generated workloads have."""

import random
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest

MAX_REQUESTS: Final = 10**9
"""Fewer than there are ids for segments and answers."""
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
    """Parameters of a workload; equal ones give equal requests."""

    requests: Annotated[int, msgspec.Meta(ge=1, le=MAX_REQUESTS)] = 10_000
    requests_per_second: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 10.0
    """Mean over a long time."""
    output_tokens: Tokens = 200
    """Mean of an answer."""
    length_variation: Annotated[float, msgspec.Meta(ge=0, le=4)] = 1.0
    """Standard deviation of lengths as a multiple of their mean; 0 makes all equal."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals, made one by one."""
        raise NotImplementedError

    def draws(self, purpose: str) -> random.Random:
        """Random numbers for one purpose: what another one draws does not change them."""
        return random.Random(f"{self.seed} {purpose}")  # noqa: S311 - reproducible, no secret


def request(number: int, at_seconds: float, prompt: tuple[Segment, ...], output_tokens: int) -> TraceRequest:
    """Request `number` of a workload, from 0; its answer has an id of its own."""
    return TraceRequest(
        arrival_seconds=at_seconds,
        prompt=prompt,
        output_tokens=output_tokens,
        answer_id=FIRST_ANSWER_ID + number,
    )
