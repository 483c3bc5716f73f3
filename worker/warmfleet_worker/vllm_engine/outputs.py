"""What the loop needs of vLLM, and what vLLM returns, in our own types."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.vllm_engine.load import StepStatistics
from warmfleet_worker.vllm_engine.scores import Position


class VllmDiedError(WarmfleetError):
    """One of vLLM's processes has ended: it computes nothing any more."""


class RefusedRequestError(WarmfleetError):
    """A request that vLLM computes neither now nor later; the text has its reason, for the client."""


class BusyError(WarmfleetError):
    """A request that vLLM does not take now; the text has its reason, for the client."""


class ClearDeclinedError(WarmfleetError):
    """vLLM did not clear its prefix cache, of which something holds blocks; it computes on."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one sequence got since its output before: the tokens of one step or of several."""

    token_ids: Sequence[int]
    cached_tokens: int
    finish_reason: str = ""
    """"" while it runs; then "stop", "length", or another one of vLLM."""
    logprobs: Sequence[Position] = ()
    """One for each of `token_ids`, if they are requested."""
    prompt_logprobs: Sequence[Position] = ()
    """One for each token of the prompt but the first, with the first output, if they are requested."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What vLLM reports of itself, the model and its KV cache, once it is loaded."""

    vllm_version: str
    total_blocks: int
    block_size_tokens: int
    max_model_length_tokens: int
    max_batched_tokens: int
    max_running_sequences: int
    dtype: str
    device: str
    end_token_ids: Sequence[int]
    vocabulary_size: int
    window_tokens: int
    kv_bytes_per_token: int
    steps_ahead: int
    """Steps that vLLM schedules, and announces blocks of, before the one in flight has ended."""
    most_scored_tokens: int | None = None
    """Of a prompt in a step, whose log probabilities vLLM has memory for; None: it takes them by slices."""


class EventSource(Protocol):
    """vLLM's cache events; `event_socket.EventSocket` in production."""

    def batches(self) -> AsyncIterator[bytes]:
        """Payloads in order.

        Raises:
            EventsLostError: some are gone, or have another form; a new iteration goes on after them.
        """
        ...


class Llm(Protocol):
    """What the loop needs of vLLM; `llm.VllmEngine` in production."""

    @property
    def steps(self) -> asyncio.Queue[StepStatistics]:
        """Each step that vLLM reports, before the outputs of that step."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether one of its processes has ended."""
        ...

    def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        salt: str | None,
        sampling: Mapping[str, Any],
        priority: int,
    ) -> AsyncGenerator[Output, None]:
        """Outputs of one sequence; to close it early aborts the sequence.

        Raises:
            VllmDiedError: one of vLLM's processes has ended.
            RefusedRequestError: vLLM does not compute it.
            BusyError: vLLM does not take it now.
        """
        ...

    def metrics(self) -> bytes:
        """Its own metrics, as Prometheus text."""
        ...

    async def clear_cache(self) -> None:
        """Forget every block; live sequences compute theirs again.

        Raises:
            VllmDiedError: one of vLLM's processes has ended.
            ClearDeclinedError: it did not; it may later.
        """
        ...
