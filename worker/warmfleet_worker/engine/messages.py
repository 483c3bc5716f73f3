"""Messages between the worker's server and its engine process, over a socketpair.

Every message is a little-endian u32 length and that many bytes of msgpack. The engine sends one
`StepReport` per step for all sequences together. Both sides validate what they decode.
"""

from array import array
from collections.abc import Iterable
from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.decoding import decoded
from warmfleet_contracts.framing import FrameReader, frame
from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.engine.sampling_params import SamplingParameters

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
MAX_METRICS_BYTES: Final = 4 * 1024 * 1024
"""Of an engine's own metrics."""
_TOKEN_BYTES: Final = 4

# Server -> engine.


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """One sequence of `AddSequences`."""

    sequence_id: int
    """Chosen by the server, never reused in an engine's life."""
    seed: int = 0


class AddSequences(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """Admit sequences that share a prompt and differ in their seeds only, such as the `n` of a request."""

    sequences: list[NewSequence]
    prompt: bytes
    """`packed_tokens` of the prompt."""
    salt: bytes = b""
    sampling: SamplingParameters
    """Of each sequence, but for its seed."""
    use_prefix_cache: bool = True
    may_read_cache: bool = True
    """False if the whole prompt must be computed, as for its log probabilities. Its blocks are cached."""
    priority: int = 0
    """Lower is scheduled first; equal priorities in order of arrival."""
    is_idle: bool = False
    """No client waits for it: it is computed with what others leave, and no load report has it."""
    unused_seconds: float | None = None
    """An idle one may evict blocks that were not used for longer; None: it evicts none."""
    router_id: str = ""
    dispatch: int = 0

    def __post_init__(self) -> None:
        if len(self.prompt) % _TOKEN_BYTES:
            raise ValueError(f"a prompt of {len(self.prompt)} bytes is not {_TOKEN_BYTES} bytes per token")


class AbortSequence(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Abort a sequence: its blocks are free by the end of the step in flight. Unknown ids are ignored."""

    sequence_id: int


class PauseSequence(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    """Preempt a sequence with a slow reader until `ResumeSequence`. Unknown ids are ignored."""

    sequence_id: int


class ResumeSequence(msgspec.Struct, frozen=True, kw_only=True, tag="resume"):
    """Queue a paused sequence again, at its old rank. Unknown ids are ignored."""

    sequence_id: int


class ClearCache(msgspec.Struct, frozen=True, kw_only=True, tag="clear"):
    """Forget every block without a holder; vLLM forgets all, and computes those of live sequences again."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Report `draining` from now on; live sequences continue."""


class ReadMetrics(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """Answer with `EngineMetrics`. Only for an engine that has metrics of its own."""


ServerMessage = (
    AddSequences | AbortSequence | PauseSequence | ResumeSequence | ClearCache | Drain | ReadMetrics
)
"""What the engine receives."""

# Engine -> server.


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and the KV arena allocated. Sent once, first."""

    epoch: str
    """Random per engine process: identifies the contents of its block pool."""
    identity: bytes
    block_size_tokens: int
    window_tokens: int
    total_blocks: int
    kv_bytes_per_token: int
    max_model_length_tokens: int
    """Prompt and output together; never more than the whole KV arena holds."""
    max_batched_tokens: int
    max_running_sequences: int
    dtype: str
    device: str
    kernels: str = ""
    """What computes: "torch", "triton", or the native step's instruction-set level; "" where vLLM chooses."""
    exact: bool = False
    """Whether equal requests get equal bits, however they are batched, cut and cached."""
    end_token_ids: list[int] = []
    """The model's own end tokens: they end a sequence unless the request ignores them."""
    vocabulary_size: int = 0
    """Token ids of a prompt must be below this."""
    prefix_caching: bool = True
    own_metrics: bool = False
    """Whether it answers `ReadMetrics`: with the families whose names begin with `vllm:`."""
    model_digest: str = ""
    """Hex, over the digests of the model's files."""
    imports_at_seconds: float = 0.0
    """When it began to import its libraries, by the monotonic clock of the machine; 0: not measured."""
    load_at_seconds: float = 0.0
    """When it began to load the model."""


class SequenceUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one sequence since the report before.

    The first update of a sequence is its admission: `cached_tokens` is set, and `last_block` is the
    hash of the prompt's last full block. It may come in a step that produced no token yet.
    """

    sequence_id: int
    cached_tokens: int | None = None
    last_block: bytes = b""
    token_ids: list[int] = []
    """Generated since the update before, in order: of one step or of several. An end token is the last."""
    logprobs: TokenLogprobs | None = None
    """Of `token_ids`, if the sequence requests them."""
    prompt_logprobs: TokenLogprobs | None = None
    """Of the prompt's next tokens, the second one first; all have come with the first of `token_ids`."""
    finish_reason: str = ""
    """"" while it runs; then "stop", "length", "abort", or one with an `error`.

    "refused": no engine with these settings computes it; "busy": this one does not now; "error": it failed.
    """
    error: str = ""
    """Text for the client."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True, tag="step", omit_defaults=True):
    """One step's outcome: token updates, cache changes and load. When idle it is sent with load only."""

    updates: list[SequenceUpdate] = []
    seq: int = 0
    """Event position after this report; rises by one if the report stores, removes or clears."""
    cleared: bool = False
    stored: list[bytes] = []
    removed: list[bytes] = []
    load: LoadReport
    scheduled_tokens: int = 0
    step_seconds: float = 0.0
    max_batched_tokens: int = 0
    """Token budget of the next step, also when the engine chooses it."""
    preempted_sequences: int = 0
    evicted_blocks: int = 0
    verified_blocks: int = 0
    """Cached blocks that were compared with a recomputation."""
    mismatched_blocks: int = 0
    """Of them, those whose bytes differed."""
    paused_sequences: int = 0
    """Paused now."""
    failed_executions: int = 0
    """Times that this step, or a part of it, raised."""
    no_progress: bool = False
    """Sequences are live, and no step has ended since the report before: the engine may hang."""
    failed_sequences: int = 0
    """Sequences that ended because they could not be computed."""
    decode_roofline_ratio: float = 0.0
    """Least time on this machine over real time, of the recent steps without prefill; 0: not known."""
    prefill_roofline_ratio: float = 0.0
    """The same of the recent steps with prefill."""


class EngineFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine cannot start or continue; it exits after this message."""

    reason: str
    refused: bool = False
    """The settings ask for what this machine does not have: another start fails alike."""


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True, tag="engine-metrics"):
    """The engine's own metrics."""

    text: bytes
    """Prometheus text exposition; empty if it is longer than `MAX_METRICS_BYTES`."""


EngineMessage = EngineReady | StepReport | EngineMetrics | EngineFailed
"""What the server receives."""


def packed_tokens(token_ids: Iterable[int]) -> bytes:
    """Token ids as u32, in the byte order of the one machine that both processes run on.

    Raises:
        OverflowError: an id is no u32.
    """
    return array("I", token_ids).tobytes()


def unpacked_tokens(packed: bytes) -> "array[int]":
    """The token ids of `packed_tokens`."""
    token_ids = array("I")
    token_ids.frombytes(packed)
    return token_ids


def message_reader() -> FrameReader:
    """Cuts the socket's bytes into bodies of messages."""
    return FrameReader(max_bytes=MAX_MESSAGE_BYTES)


def encode_message(message: ServerMessage | EngineMessage) -> bytes:
    """One message as it goes over the socket, length first.

    Raises:
        ContractError: larger than `MAX_MESSAGE_BYTES`.
    """
    return frame(_encoder.encode(message), max_bytes=MAX_MESSAGE_BYTES)


def decode_server_message(body: bytes) -> ServerMessage:
    """Decode a message from the server.

    Raises:
        ContractError: malformed.
    """
    return decoded(_server_decoder.decode, body, "message from the server")


def decode_engine_message(body: bytes) -> EngineMessage:
    """Decode a message from the engine.

    Raises:
        ContractError: malformed.
    """
    return decoded(_engine_decoder.decode, body, "message from the engine")


_encoder: Final = msgspec.msgpack.Encoder()
_server_decoder: Final[msgspec.msgpack.Decoder[ServerMessage]] = msgspec.msgpack.Decoder(ServerMessage)
_engine_decoder: Final[msgspec.msgpack.Decoder[EngineMessage]] = msgspec.msgpack.Decoder(EngineMessage)
