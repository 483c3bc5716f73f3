"""Encoders of the models in the fleet, fetched from workers by digest and kept on disk.

The router has no model volume. Until it has a model's tokenizer it routes that model by load only, which
the decision and a metric show.
"""

import asyncio
import contextlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from warmfleet_contracts.cache.worker_api import TOKENIZER_PATH, PromptAssets
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ContractError, PromptError, PromptTooLongError, WarmfleetError
from warmfleet_contracts.openai import ChatRequest, CompletionRequest, RequestError
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.prompt_size import INLINE_CHARS, conversation_chars
from warmfleet_contracts.prompts.segment_memory import SaltedSegments, SegmentMemory
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.upstream import Upstream, UpstreamError
from warmfleet_runtime.files import write_file_atomically
from warmfleet_runtime.memory import exclude_from_collection

MAX_ENCODERS: Final = 8
"""Encoders in memory. One of a 150k vocabulary takes some 100 MB."""
IDLE_SECONDS: Final = 60.0
"""Of as many as may be in memory, one that was not used for this long goes for one that is asked for."""
MAX_FILES: Final = 32
MAX_ASSET_BYTES: Final = 128 * 1024 * 1024
FETCH_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 2.0
"""Pause after a fetch that failed."""
POLL_SECONDS: Final = 0.1
"""How often the fleet is searched for a tokenizer that is not known yet."""
ENCODING_THREADS: Final = 2

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_log = structlog.get_logger("warmfleet.router.tokenization")


@dataclass(frozen=True, slots=True)
class EncodedPrompts:
    """One request's prompts under each tokenizer that is known."""

    token_ids: Mapping[str, list[list[int]]]
    """Of every prompt, by tokenizer digest."""
    too_long: frozenset[str] = field(default_factory=frozenset)
    """Digests under which a prompt is longer than every worker's context, and was not encoded further."""


@dataclass(slots=True)
class _Loaded:
    encoder: PromptEncoder
    used_at: float
    """When a prompt was encoded with it last, or when it was loaded."""


class Encoders:
    """Prompt encoders by tokenizer digest, fetched in the background. Encodes long prompts in threads.

    Belongs to one event loop. A prompt whose tokenizer is not `known` yet is routed by load only. Of a fleet
    with more than `MAX_ENCODERS` tokenizers those are in memory that prompts need: another one is loaded
    when a prompt has asked for it and the least recently used one is idle. So building one, which takes a
    second of a core, is no more frequent than once in `IDLE_SECONDS` for each of them.
    """

    def __init__(
        self,
        folder: Path,
        upstream: Upstream,
        workers: Callable[[], Sequence[WorkerStatus]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._upstream = upstream
        self._workers = workers
        self._clock = clock
        self._encoders: OrderedDict[str, _Loaded] = OrderedDict()
        """The least recently used first."""
        self._asked_for: set[str] = set()
        """Digests that prompts needed and that are not in memory."""
        self._refused: dict[str, str] = {}
        self._memory = SegmentMemory()
        self._threads = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="encode")
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="tokenizers")

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def known(self, digest: str) -> PromptEncoder | None:
        """The encoder for a digest, if the router has it."""
        loaded = self._encoders.get(digest)
        return None if loaded is None else loaded.encoder

    def is_settled(self, digest: str) -> bool:
        """Whether there is nothing to wait for: it is here, was refused, or has no room."""
        return digest in self._encoders or digest in self._refused or len(self._encoders) >= MAX_ENCODERS

    @property
    def count(self) -> int:
        return len(self._encoders)

    async def encode(
        self, request: ChatRequest | CompletionRequest, limits: Mapping[str, int], salt: bytes
    ) -> EncodedPrompts:
        """Encode every prompt of `request` with each tokenizer that is known of those asked for.

        `limits`: by tokenizer digest, the tokens of the longest context; of a longer prompt no more than that
        is encoded. Long segments are remembered under `salt`, that of the tenant's blocks.

        Raises:
            RequestError: the prompt cannot be rendered or encoded.
        """
        token_ids: dict[str, list[list[int]]] = {}
        too_long: set[str] = set()
        segments = self._memory.of_salt(salt)
        for digest, limit_tokens in sorted(limits.items()):
            loaded = self._encoders.get(digest)
            if loaded is None:
                self._asked_for.add(digest)
            else:
                self._encoders.move_to_end(digest)
                loaded.used_at = self._clock()
                try:
                    token_ids[digest] = await self._encode(loaded.encoder, request, segments, limit_tokens)
                except PromptTooLongError:
                    too_long.add(digest)
        return EncodedPrompts(token_ids, frozenset(too_long))

    async def _encode(
        self,
        encoder: PromptEncoder,
        request: ChatRequest | CompletionRequest,
        segments: SaltedSegments,
        limit_tokens: int,
    ) -> list[list[int]]:
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        try:
            if _prompt_chars(request) <= INLINE_CHARS:
                return _encode_prompts(encoder, request, segments, limit_tokens)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._threads, _encode_prompts, encoder, request, segments, limit_tokens
            )
        except PromptTooLongError:
            raise
        except PromptError as error:
            raise RequestError(str(error), param=param) from error

    async def _keep(self) -> None:
        """Fetch the tokenizers that workers announce and the router does not have, until it is stopped."""
        while True:
            missing = False
            announced = set()
            for worker in self._workers():
                if worker.hello is None:
                    continue
                digest = worker.hello.tokenizer_digest
                announced.add(digest)
                if self._is_due(digest):
                    await self._fetch(worker, digest)
                    missing |= self._is_due(digest)
            self._asked_for &= announced
            await asyncio.sleep(RETRY_SECONDS if missing else POLL_SECONDS)

    def _is_due(self, digest: str) -> bool:
        """Whether it should be in memory now, and is not."""
        if digest in self._encoders or digest in self._refused:
            return False
        if len(self._encoders) < MAX_ENCODERS:
            return True
        least_recently_used = next(iter(self._encoders.values()))
        idle_seconds = self._clock() - least_recently_used.used_at
        return digest in self._asked_for and idle_seconds >= IDLE_SECONDS

    async def _fetch(self, worker: WorkerStatus, digest: str) -> None:
        if _DIGEST.fullmatch(digest) is None:
            self._refuse(digest, "the announced tokenizer digest is not one")
            return
        path = self._folder / f"{digest}.msgpack"
        try:
            encoder = await asyncio.to_thread(_load, path, digest)
            if encoder is None:
                async with (
                    asyncio.timeout(FETCH_SECONDS),
                    self._upstream.request(
                        worker.endpoint, "GET", f"{TOKENIZER_PATH}/{digest}", wait_seconds=FETCH_SECONDS
                    ) as response,
                ):
                    if response.status != 200:
                        _log.warning("tokenizer not served", uid=worker.endpoint.uid, status=response.status)
                        return
                    body = await response.body(MAX_ASSET_BYTES)
                encoder = await asyncio.to_thread(_build, body, digest)
                await asyncio.to_thread(_store, path, body)
        except (UpstreamError, TimeoutError, OSError) as error:
            _log.warning("tokenizer not fetched", uid=worker.endpoint.uid, reason=str(error))
        except WarmfleetError as error:
            self._refuse(digest, str(error))
        else:
            self._keep_in_memory(digest, encoder)
            # A hundred thousand strings that stay: each full collection would take 50 ms to walk them.
            exclude_from_collection()
            _log.info("tokenizer ready", digest=digest, vocabulary_size=encoder.vocabulary_size)

    def _keep_in_memory(self, digest: str, encoder: PromptEncoder) -> None:
        self._encoders[digest] = _Loaded(encoder, self._clock())
        self._asked_for.discard(digest)
        while len(self._encoders) > MAX_ENCODERS:
            self._encoders.popitem(last=False)

    def _refuse(self, digest: str, reason: str) -> None:
        """Not asked for again: the same digest would bring the same assets."""
        if len(self._refused) >= MAX_FILES:
            self._refused.pop(next(iter(self._refused)))
        self._refused[digest] = reason
        _log.error("tokenizer refused; its model is routed by load only", digest=digest[:80], reason=reason)


def _prompt_chars(request: ChatRequest | CompletionRequest) -> int:
    """Size of the request's text, for deciding where to encode it; token ids count one each."""
    if isinstance(request, ChatRequest):
        return conversation_chars(request.messages)
    return sum(len(prompt) for prompt in request.prompts)


def _encode_prompts(
    encoder: PromptEncoder,
    request: ChatRequest | CompletionRequest,
    segments: SaltedSegments,
    limit_tokens: int,
) -> list[list[int]]:
    if isinstance(request, ChatRequest):
        return [encoder.encode_chat(request.messages, segments, limit_tokens)]
    return [
        encoder.encode_text(prompt, segments, limit_tokens) if isinstance(prompt, str) else prompt
        for prompt in request.prompts
    ]


def _build(body: bytes, digest: str) -> PromptEncoder:
    try:
        assets = msgspec.msgpack.decode(body, type=PromptAssets)
    except UNDECODABLE as error:
        raise ContractError(f"malformed prompt assets: {error}") from error
    encoder = PromptEncoder.from_assets(assets)
    if encoder.tokenizer_digest != digest:
        raise ContractError("the prompt assets do not have the announced digest")
    return encoder


def _load(path: Path, digest: str) -> PromptEncoder | None:
    """The encoder on disk; None if there is none, or it was damaged."""
    try:
        if path.stat().st_size > MAX_ASSET_BYTES:
            return None
        return _build(path.read_bytes(), digest)
    except (OSError, WarmfleetError):
        return None


def _store(path: Path, body: bytes) -> None:
    """Keep the assets for the next start; a full or read-only disk only costs that start a fetch."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file_atomically(path, body)
        oldest_first = sorted(path.parent.glob("*.msgpack"), key=lambda entry: entry.stat().st_mtime)
        for surplus in oldest_first[:-MAX_FILES]:
            surplus.unlink()
