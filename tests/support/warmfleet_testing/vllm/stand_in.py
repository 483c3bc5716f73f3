"""A stand-in for vLLM behind `outputs.Llm`: a block pool, with events and statistics as vLLM sends them.

It computes nothing: the next token is the last one plus one. Steps happen when `step` is called, or by
themselves with `run_steps`. With `steps_ahead` of its facts it schedules as vLLM does on a GPU: the next
step, whose blocks it announces with the end of the one before.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from warmfleet_worker.vllm_engine.load import StepStatistics
from warmfleet_worker.vllm_engine.outputs import ModelFacts, Output, RefusedRequestError, VllmDiedError
from warmfleet_worker.vllm_engine.resident import EventsLostError
from warmfleet_worker.vllm_engine.scores import Score
from warmfleet_worker.vllm_engine.versions import OLDEST_VERSION

BLOCK_TOKENS = 32
VOCABULARY = 1000


def facts(total_blocks: int = 64, **changes: Any) -> ModelFacts:
    values: dict[str, Any] = {
        "vllm_version": f"{OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}.0",
        "total_blocks": total_blocks,
        "block_size_tokens": BLOCK_TOKENS,
        "max_model_length_tokens": total_blocks * BLOCK_TOKENS,
        "max_batched_tokens": 2048,
        "max_running_sequences": 8,
        "dtype": "float32",
        "device": "cpu",
        "end_token_ids": (2,),
        "vocabulary_size": VOCABULARY,
        "window_tokens": 0,
        "kv_bytes_per_token": 23_040,
        "steps_ahead": 0,
    }
    return ModelFacts(**{**values, **changes})


@dataclass(eq=False)
class _Request:
    """One sequence in the stand-in."""

    prompt: list[int]
    salt: str | None
    sampling: Mapping[str, Any]
    outputs: "asyncio.Queue[Output | Exception]" = field(default_factory=asyncio.Queue)
    generated: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Its blocks, cached ones first."""
    announced: int = 0
    has_ended: bool = False
    """Nothing of it is scheduled any more."""
    answered: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.generated


@dataclass(eq=False)
class _Step:
    """What one step computes, from when it is scheduled."""

    prefill_tokens: int = 0
    decode_sequences: int = 0
    outputs: list[tuple[_Request, int, int, str]] = field(default_factory=list)
    """For each sequence its cached tokens, its new token, and why it ends."""


class StandInVllm:
    """Blocks are found by prefix and salt, evicted in order of release, and reported as vLLM does."""

    def __init__(self, model: ModelFacts | None = None) -> None:
        self.facts = model or facts()
        self.steps: asyncio.Queue[StepStatistics] = asyncio.Queue()
        self.is_dead = False
        self.refusal = ""
        self.clears = 0
        self.requests: dict[str, _Request] = {}
        self.priorities: dict[str, int] = {}
        self.sends_events = True
        self.metrics_text = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n"
        self._numbers = 0
        self._events: list[dict[str, Any]] = []
        self._batches: asyncio.Queue[bytes | EventsLostError] = asyncio.Queue()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.facts.total_blocks))
        self._holders: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        self._arrived = asyncio.Event()
        self._in_flight: deque[_Step] = deque()

    @property
    def cached_copies(self) -> int:
        """Blocks in the prefix cache, copies counted."""
        return len(self._hash_of)

    def chain(self, tokens: Sequence[int], salt: str | None) -> list[int]:
        """Hashes of the full blocks of a sequence, as vLLM has them on the wire: 64 bits."""
        previous, hashes = (salt or "").encode(), []
        for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
            previous = hashlib.sha256(previous + repr(tokens[end - BLOCK_TOKENS : end]).encode()).digest()
            hashes.append(int.from_bytes(previous[-8:], "big"))
        return hashes

    async def batches(self) -> AsyncIterator[bytes]:
        while True:
            batch = await self._batches.get()
            if isinstance(batch, EventsLostError):
                self._batches.task_done()
                raise batch
            yield batch
            self._batches.task_done()

    async def events_are_read(self) -> None:
        """Wait until the engine process has taken in what was published."""
        async with asyncio.timeout(10):
            await self._batches.join()

    async def waiting(self, sequence_id: int) -> None:
        """Wait until the next step would compute that sequence."""
        async with asyncio.timeout(10):
            while str(sequence_id) not in self.requests:
                self._arrived.clear()
                await self._arrived.wait()

    def lose_events(self) -> None:
        """Drop what has not been read, and report the gap."""
        while not self._batches.empty():
            self._batches.get_nowait()
            self._batches.task_done()
        self._batches.put_nowait(EventsLostError("a gap"))

    async def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        salt: str | None,
        sampling: Mapping[str, Any],
        priority: int,
    ) -> AsyncGenerator[Output, None]:
        if self.refusal:
            raise RefusedRequestError(self.refusal)
        request = _Request(list(prompt), salt, sampling)
        self.requests[request_id] = request
        self.priorities[request_id] = priority
        self._arrived.set()
        try:
            while True:
                output = await request.outputs.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finish_reason:
                    return
        finally:
            self._release(request)
            self.requests.pop(request_id, None)

    def metrics(self) -> bytes:
        return self.metrics_text

    async def clear_cache(self) -> None:
        self.clears += 1
        for request in self.requests.values():
            self._release(request)  # preempted: computed again
            request.announced = 0
        self._hash_of.clear()
        self._events.append({"type": "AllBlocksCleared"})
        await asyncio.sleep(0)

    def die(self) -> None:
        self.is_dead = True
        for request in self.requests.values():
            request.outputs.put_nowait(VllmDiedError("EngineCore encountered an issue"))

    def step(self) -> None:
        """Compute one token of every sequence, prompts whole; with `steps_ahead` the one scheduled before."""
        self._in_flight.append(self._scheduled())
        if len(self._in_flight) > self.facts.steps_ahead:
            self._end(self._in_flight.popleft())

    def _scheduled(self) -> _Step:
        step = _Step()
        for request in self.requests.values():
            if request.has_ended:
                continue
            cached = 0
            if not request.held:
                cached = self._admit(request)
                step.prefill_tokens += len(request.tokens) - cached
            else:
                step.decode_sequences += 1
            self._store(request)
            request.generated.append((request.tokens[-1] + 1) % VOCABULARY)
            reason = _finish_reason(request)
            request.has_ended = bool(reason)
            step.outputs.append((request, cached, request.generated[-1], reason))
        return step

    def _end(self, step: _Step) -> None:
        if not step.outputs:
            return
        for request, _, _, reason in step.outputs:
            if reason:
                self._release(request)
        self._flush()
        self.report(
            StepStatistics(
                running_sequences=sum(not request.has_ended for request in self.requests.values()),
                used_ratio=len(self._holders) / self.facts.total_blocks,
                prefill_tokens=step.prefill_tokens,
                decode_sequences=step.decode_sequences,
                step_seconds=0.01,
            )
        )
        for request, cached, token, reason in step.outputs:
            top = request.sampling.get("logprobs")
            scored = request.sampling.get("prompt_logprobs") is not None and not request.answered
            request.answered = True
            request.outputs.put_nowait(
                Output(
                    token_ids=[token],
                    cached_tokens=cached,
                    finish_reason=reason,
                    logprobs=[] if top is None else [{token: Score(-0.5, 1), 7: Score(-1.5, 2)}],
                    prompt_logprobs=[{one: Score(-2.0, 3)} for one in request.prompt[1:]] if scored else [],
                )
            )

    def report(self, step: StepStatistics) -> None:
        """A step has ended."""
        self.steps.put_nowait(step)

    def publish(self, batch: bytes) -> None:
        """Cache events of a step."""
        self._batches.put_nowait(batch)

    async def run_steps(self) -> None:
        """Step whenever there is a sequence, until cancelled."""
        while True:
            self.step()
            await asyncio.sleep(0.001)

    def _admit(self, request: _Request) -> int:
        limit = (len(request.tokens) - 1) // BLOCK_TOKENS
        block_of = {block_hash: block for block, block_hash in self._hash_of.items()}
        if not request.sampling.get("skip_reading_prefix_cache"):
            for block_hash in self.chain(request.tokens, request.salt)[:limit]:
                block = block_of.get(block_hash)
                if block is None:
                    break
                self._hold(request, block)
        request.announced = len(request.held)
        return len(request.held) * BLOCK_TOKENS

    def _store(self, request: _Request) -> None:
        """Allocate what the sequence's tokens need, and report its full blocks."""
        tokens = request.tokens
        while len(request.held) * BLOCK_TOKENS < len(tokens):
            block, _ = self._free.popitem(last=False)
            evicted = self._hash_of.pop(block, None)
            if evicted is not None:
                self._events.append(
                    {"type": "BlockRemoved", "block_hashes": [evicted], "medium": "GPU", "group_idx": 0}
                )
            self._hold(request, block)
        hashes = self.chain(tokens, request.salt)
        new = hashes[request.announced :]
        if not new:
            return
        first = request.announced
        for index, block_hash in enumerate(new, first):
            self._hash_of[request.held[index]] = block_hash
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": new,
                "parent_block_hash": hashes[first - 1] if first else None,
                "token_ids": tokens[first * BLOCK_TOKENS : len(hashes) * BLOCK_TOKENS],
                "block_size": BLOCK_TOKENS,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [
                    [request.salt] if request.salt and not first else None,
                    *[None] * (len(new) - 1),
                ],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )
        request.announced = len(hashes)

    def _hold(self, request: _Request, block: int) -> None:
        request.held.append(block)
        self._holders[block] = self._holders.get(block, 0) + 1
        self._free.pop(block, None)

    def _release(self, request: _Request) -> None:
        for block in reversed(request.held):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._free[block] = None
        request.held.clear()

    def _flush(self) -> None:
        if self._events and self.sends_events:
            self.publish(msgspec.msgpack.encode([1.5, self._events, 0]))
        self._events = []


def _finish_reason(request: _Request) -> str:
    if request.generated[-1] in request.sampling.get("stop_token_ids", ()):
        return "stop"
    return "length" if len(request.generated) >= request.sampling["max_tokens"] else ""
