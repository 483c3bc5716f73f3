"""`POST /internal/prewarm`: prefixes that a router has a worker compute ahead of requests.

The body is a `PrewarmRequest` in msgpack, the answer a `PrewarmAnswer` in JSON, sent when all prefixes are
computed or their time is over. They are computed one after the other, the first one first, with what requests
leave of the engine. For a newcomer's prefixes nothing is evicted; one that is handed over, because its worker
is about to go, may take the place of blocks that were not used for longer. What is not computed when the
caller closes the connection is given up.

A worker that waits for its routers (`--prewarm-seconds`) is not ready, and reports `total_blocks` = 0 in its
event stream, until each router that follows its event stream has its answer. So a router sends it one in any
case, if need be without a prefix.
"""

import sys
from array import array
from typing import Annotated, Final

import msgspec

from warmfleet_contracts.cache.kv_events import Count
from warmfleet_contracts.cache.worker_api import MAX_SALT_BYTES
from warmfleet_contracts.decoding import decoded

PREWARM_PATH: Final = "/internal/prewarm"
MAX_PREFIXES: Final = 64
MAX_PREFIX_TOKENS: Final = 1024 * 1024
_TOKEN_BYTES: Final = 4


class Prefix(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of prompts that came often."""

    salt: Annotated[bytes, msgspec.Meta(max_length=MAX_SALT_BYTES)]
    """Of its block hashes."""
    tokens: Annotated[
        bytes, msgspec.Meta(min_length=_TOKEN_BYTES, max_length=MAX_PREFIX_TOKENS * _TOKEN_BYTES)
    ]
    """Token ids as little-endian u32."""
    unused_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Blocks that the worker has not used for longer than this may be evicted for it; None: none may.

    A worker of an earlier release evicts none.
    """

    def __post_init__(self) -> None:
        if len(self.tokens) % _TOKEN_BYTES:
            raise ValueError(f"{len(self.tokens)} bytes are not {_TOKEN_BYTES} bytes per token")

    @classmethod
    def of(cls, salt: bytes, token_ids: "array[int]", unused_seconds: float | None = None) -> "Prefix":
        """A prefix of these u32 token ids."""
        return cls(salt, _little_endian(token_ids).tobytes(), unused_seconds)

    @property
    def token_ids(self) -> "array[int]":
        """As u32."""
        token_ids = array("I")
        token_ids.frombytes(self.tokens)
        return _little_endian(token_ids)


class PrewarmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to compute, the most valuable prefix first."""

    prefixes: Annotated[list[Prefix], msgspec.Meta(max_length=MAX_PREFIXES)] = []
    requests_wait: bool = False
    """For a worker, in the router: this one is to take requests at once."""
    within_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """What is not computed by then is given up."""


class PrewarmAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, in tokens of all prefixes."""

    computed_tokens: Count = 0
    cached_tokens: Count = 0
    """Cached before."""
    refused_prefixes: Count = 0
    """That the engine does not compute: longer than the model's context, or than what its cache has free."""
    late_prefixes: Count = 0
    """Given up, in part or whole: `within_seconds` were over."""


def encode_prewarm(request: PrewarmRequest) -> bytes:
    """The body of a request."""
    return _encoder.encode(request)


def decode_prewarm(body: bytes) -> PrewarmRequest:
    """The request in a body.

    Raises:
        ContractError: malformed, or beyond a bound.
    """
    return decoded(_decoder.decode, body, "prewarm request")


def _little_endian(token_ids: "array[int]") -> "array[int]":
    assert token_ids.itemsize == _TOKEN_BYTES
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return token_ids


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[PrewarmRequest]] = msgspec.msgpack.Decoder(PrewarmRequest)
