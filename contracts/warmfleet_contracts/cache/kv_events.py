"""The event stream: which blocks a worker holds, and its load, as routers receive them.

`GET /internal/kv-events?epoch=&after=` answers with one long-lived response of frames, each a
little-endian u32 length and that many bytes of msgpack. The first frame is a `Hello`; then either a
snapshot (frames with `snapshot_left` set, the last one 0) or, when the subscriber's epoch and position
are still in the worker's replay buffer, directly the live frames after its position. All of them are written
in the version that `contract_versions.common_version` found.
"""

import hashlib
import hmac
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Final

import msgspec

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS, CONTRACT_VERSION, UNSTATED_VERSION
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_contracts.decoding import decoded
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.framing import FrameReader, frame

MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
SNAPSHOT_CHUNK_HASHES: Final = 1_024
"""Live streams at a router wait while it takes one chunk, 1 to 2 ms."""
COALESCE_SECONDS: Final = 0.020
BUSY_HEARTBEAT_SECONDS: Final = 1.0
"""A worker is busy from a request's arrival until the end of its answer."""
IDLE_HEARTBEAT_SECONDS: Final = 5.0
BUSY_SILENCE_SECONDS: Final = 3.0
"""A busy worker that sends no frame for this long counts as silent."""
IDLE_SILENCE_SECONDS: Final = 12.0

MAX_COUNT: Final = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""Of what a worker has: sums of several are numbers that every encoding takes."""

MAX_REPORTED_ROUTERS: Final = 256
"""In one load report, and whose event streams a worker takes. A release has at most 100, twice as many while
their image is replaced, and each has the lives that a worker still remembers."""
MAX_ROUTER_ID_CHARS: Final = 64
"""Workers keep no more of an id."""
MAX_REPORTED_ANSWERS: Final = 64
"""Plain ones, in one load report, about 1.5 KiB; with more open answers the reports name them in rotation."""
RouterId = Annotated[str, msgspec.Meta(max_length=MAX_ROUTER_ID_CHARS)]


class ResidentDigest(msgspec.Struct, frozen=True, array_like=True):
    """Size and exclusive-or of a set of block hashes: cheap to update, and different if the sets differ."""

    count: int = 0
    xor: bytes = bytes(16)


class StepTimeFit(msgspec.Struct, frozen=True, kw_only=True):
    """Step seconds = base + a * prefill tokens above the knee + b * decoding sequences + c * context tokens.

    Up to the knee a step is bound by memory, and more tokens take no longer. Decodes fill it first.
    """

    base_seconds: float = 0.0
    per_prefill_token_seconds: float = 0.0
    per_decode_sequence_seconds: float = 0.0
    per_context_token_seconds: float = 0.0
    knee_tokens: int = 0
    """Prefill tokens and decodes of a step that cost nothing. Since version 2; 0: each token costs."""
    samples: int = 0
    """Steps behind the fit; 0 means no measurement yet, and a router uses its fleet's median."""


class PlainAnswer(msgspec.Struct, frozen=True, array_like=True):
    """How far an open answer is that comes as a whole: its router sees nothing of it before its end.

    Seconds since the worker submitted it to its engine, so that each report is as good as the first.
    """

    dispatch: int
    admitted_after_seconds: float
    """Its first sequence got a seat."""
    first_token_after_seconds: float
    """Its first token, of any sequence, was computed."""
    generated_tokens: Count
    """So far, of all its sequences."""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's load; in every frame.

    A new field: filled in `worker/engine/reporter` and `worker/vllm_engine/load`, before the first report in
    `worker/server/events`; sent at once if `_differs` there compares it, used by
    `router/routing/cost.worker_load`, removed by `_without_version_2` for older routers.
    """

    running_sequences: Count = 0
    waiting_sequences: Count = 0
    max_running_sequences: Count = 0
    queued_uncached_tokens: Count = 0
    """Prompt tokens admitted and not computed yet (waiting, or running and still in prefill)."""
    context_tokens: Count = 0
    """Tokens of KV that the running sequences attend to."""
    total_blocks: Count = 0
    """0 while it takes no requests: the engine is still loading, has work and reports no step, or computes
    prefixes ahead of requests."""
    pinned_blocks: Count = 0
    """Blocks that live sequences hold, without those that are computed ahead of requests."""
    cached_blocks: Count = 0
    """Committed blocks that no sequence holds: evictable, free capacity."""
    step_time: StepTimeFit = msgspec.field(default_factory=StepTimeFit)
    admitted_dispatches: Annotated[dict[RouterId, int], msgspec.Meta(max_length=MAX_REPORTED_ROUTERS)] = (
        msgspec.field(default_factory=dict)
    )
    """Router id -> highest dispatch counter that this report already includes."""
    draining: bool = False
    plain_answers: Annotated[
        dict[RouterId, Annotated[list[PlainAnswer], msgspec.Meta(max_length=MAX_REPORTED_ANSWERS)]],
        msgspec.Meta(max_length=MAX_REPORTED_ROUTERS),
    ] = msgspec.field(default_factory=dict)
    """Router id -> its open plain answers that have a token. Since version 2; filled in `worker/server`."""
    fixed_batched_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    """Most tokens of a step, where that is a set number. Absent where the engine takes what it computes in
    its target time, before the first step, and from older workers: it was added to version 2 later."""
    open_dispatches: (
        Annotated[dict[RouterId, Count], msgspec.Meta(max_length=MAX_REPORTED_ROUTERS)] | msgspec.UnsetType
    ) = msgspec.UNSET
    """Router id -> how many of its dispatches have a sequence that runs or waits in this report; of a router
    without any there is no entry. By the worker: how many a router has open is in its `/internal/fleet`.
    Absent from older workers: it was added to version 2 later."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First frame: the worker, its cache identity, and a proof that it holds this worker's token."""

    v: int = UNSTATED_VERSION
    """As received; `encode_message` writes its own."""
    uid: str
    """Pod uid in a cluster; unique per worker process in a local fleet."""
    identity: bytes
    block_size_tokens: int
    window_tokens: int
    epoch: str
    served_names: list[str]
    tokenizer_digest: str
    max_model_length_tokens: int
    proof: bytes
    """`hello_proof` over the nonce that the subscriber sent; empty when no token is configured."""
    model_digest: str | msgspec.UnsetType = msgspec.UNSET
    """Hex; the files that are served, for users and the operator. Added to version 1 later: may be absent."""
    exact: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether it promises equal bits for equal tokens. Added to version 2 later: may be absent."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag="frame", omit_defaults=True):
    """One change of the resident set, one part of a snapshot, or load alone."""

    v: int = UNSTATED_VERSION
    """As received; `encode_message` writes its own."""
    epoch: str
    seq: int
    """Rises by one per frame that carries events; load-only frames repeat the last one."""
    stored: list[bytes] = []
    removed: list[bytes] = []
    cleared: bool = False
    """Everything resident is gone; applied before `stored` and `removed`."""
    snapshot_left: int | None = None
    """Snapshot chunks still to come after this one; None outside a snapshot."""
    load: LoadReport | None = None
    start: StartPhases | None = None
    """How long the worker's start took, once per subscriber and again when it changed. Since version 2."""
    digest: ResidentDigest = ResidentDigest()
    """Of the resident set after this frame (for a snapshot chunk: of the whole snapshot)."""


Message = Hello | Frame

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def hello_proof(token: bytes, *, nonce: bytes, uid: str, identity: bytes) -> bytes:
    """HMAC that proves possession of this worker's token."""
    parts = (nonce, uid.encode(), identity)
    message = b"warmfleet-hello-v1" + b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.digest(token, message, hashlib.sha256)


def encode_message(message: Message, version: int = CONTRACT_VERSION) -> bytes:
    """One message as it goes over the wire in `version`, one of `ACCEPTED_VERSIONS`; length first.

    Raises:
        ContractError: the message exceeds `MAX_FRAME_BYTES`.
    """
    versioned = msgspec.structs.replace(message, v=version)
    return frame(
        _encoder.encode(versioned if version == CONTRACT_VERSION else _without_version_2(versioned)),
        max_bytes=MAX_FRAME_BYTES,
    )


def _without_version_2(message: Message) -> dict[str, Any]:
    """The fields of `message` that version 1 has."""
    fields: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    fields.pop("start", None)
    fields.pop("exact", None)
    load = fields.get("load")
    if load is not None:
        del load["plain_answers"]
        load.pop("fixed_batched_tokens", None)
        load.pop("open_dispatches", None)
        del load["step_time"]["knee_tokens"]
    return fields


class MessageReader:
    """Cuts a byte stream into messages. Unknown fields are tolerated, unknown versions are not."""

    def __init__(self, versions: AbstractSet[int] = ACCEPTED_VERSIONS) -> None:
        """`versions`: those that the subscriber stated."""
        self._frames = FrameReader(max_bytes=MAX_FRAME_BYTES)
        self._versions = versions

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that `data` completes.

        Raises:
            ContractError: a frame is too large, malformed, or of a version that is not accepted.
        """
        for body in self._frames.feed(data):
            yield decode_message(body, self._versions)


def decode_message(body: bytes, versions: AbstractSet[int] = ACCEPTED_VERSIONS) -> Message:
    """The message in one frame's body.

    Raises:
        ContractError: malformed, or of none of `versions`.
    """
    message = decoded(_decoder.decode, body, "event frame")
    if message.v not in versions:
        raise ContractError(
            f"event frame has contract version {message.v}, this process accepts {sorted(versions)}"
        )
    return message
