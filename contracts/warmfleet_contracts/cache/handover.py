"""`POST /internal/handover`: the operator names workers that are about to go to a router.

The router has what only these workers hold, and what comes often enough, computed by workers that stay
(`prewarm`), and answers when that is done or the time is over. Each prefix has one router that moves it: its
share, by rendezvous hashing of the prefix over all shares. A router then moves what is left of the others',
such as what only it knows. Nothing has to be undone: what is moved is cached like any other prefix. Closing
the connection gives up the rest. A router of an earlier release answers 404.

Request and answer are JSON without a version: unknown fields are ignored, and an absent one has its default.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from warmfleet_contracts.cache.fleet_totals import Name
from warmfleet_contracts.cache.kv_events import Count
from warmfleet_contracts.decoding import decoded
from warmfleet_contracts.errors import ContractError

HANDOVER_PATH: Final = "/internal/handover"
MAX_HANDOVER_BYTES: Final = 1024 * 1024
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_VICTIMS: Final = 1024
ANSWER_SECONDS: Final = 1.0
"""From the end of a router's time to its answer."""
MAX_SECONDS: Final = 30.0
MAX_SHARES: Final = 1024
_MAX_PAYBACK_SECONDS: Final = 86_400.0


class HandoverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers go, and what one router does about it."""

    victims: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MAX_VICTIMS)]
    """Uids."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
    """From the arrival of the request; a duration, so that no two clocks have to agree."""
    payback_seconds: Annotated[float, msgspec.Meta(gt=0, le=_MAX_PAYBACK_SECONDS)] = 600.0
    """A prefix that is not expected to come within this time is not worth computing again."""
    share: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SHARES)] = 0
    """This router's number."""
    shares: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARES)] = 1
    """How many routers get a number."""

    def __post_init__(self) -> None:
        if self.share >= self.shares:
            raise ValueError(f"share {self.share} is none of {self.shares}")


class HandoverAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it."""

    moved_prefixes: Count = 0
    """That a worker that stays has now."""
    computed_tokens: Count = 0
    """Of them, computed for this."""
    skipped: Annotated[dict[str, Count], msgspec.Meta(max_length=64)] = {}
    """Prefixes of the victims that were not moved, by reason (`Skipped` of the router)."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def shared_out(
    victims: Sequence[str], routers: int, *, seconds: float, payback_seconds: float
) -> list[HandoverRequest]:
    """One request for each of so many routers, each with a share of its own; of the first `MAX_VICTIMS`."""
    return [
        HandoverRequest(
            victims=tuple(victims[:MAX_VICTIMS]),
            seconds=seconds,
            payback_seconds=payback_seconds,
            share=share,
            shares=routers,
        )
        for share in range(routers)
    ]


def encode_handover(request: HandoverRequest) -> bytes:
    """The body of a request."""
    return msgspec.json.encode(request)


def decode_handover(body: bytes) -> HandoverRequest:
    """The request in a body.

    Raises:
        ContractError: malformed, or beyond a bound.
    """
    if len(body) > MAX_HANDOVER_BYTES:
        raise ContractError(f"a handover request of more than {MAX_HANDOVER_BYTES} bytes")
    return decoded(_request_decoder.decode, body, "handover request")


def decode_handover_answer(content: bytes) -> HandoverAnswer:
    """A router's answer.

    Raises:
        ContractError: malformed.
    """
    return decoded(_answer_decoder.decode, content, "answer to a handover")


_request_decoder: Final = msgspec.json.Decoder(HandoverRequest)
_answer_decoder: Final = msgspec.json.Decoder(HandoverAnswer)
