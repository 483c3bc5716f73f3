"""From an HTTP request to sequence requests: dispatch headers, prompts, limits."""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from starlette.datastructures import Headers

from warmfleet_contracts.cache.blocks import tenant_salt
from warmfleet_contracts.cache.kv_events import MAX_ROUTER_ID_CHARS
from warmfleet_contracts.cache.worker_api import (
    DISPATCH_HEADER,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_SALT_BYTES,
    PRIORITY_HEADER,
    ROUTER_ID_HEADER,
    SALT_HEADER,
    SEED_HEADER,
)
from warmfleet_contracts.errors import PromptError, PromptTooLongError
from warmfleet_contracts.openai import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Prompt,
    RequestError,
)
from warmfleet_contracts.openai.context_length import context_length_error, least_answer_tokens
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.prompt_size import INLINE_CHARS, conversation_chars
from warmfleet_contracts.prompts.segment_memory import SaltedSegments, SegmentMemory
from warmfleet_worker.engine.messages import EngineReady
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.server.answer_tokens import EchoedPrompt, text_offsets
from warmfleet_worker.server.engine_client import SequenceRequest

INLINE_DECODED_TOKENS: Final = 4_096
"""More tokens of one request are decoded in a thread. Their text does not count: it may be empty."""
MAX_LOGPROBS: Final = 4 * 1024 * 1024
"""Log probabilities that one request may ask for in all: 20 beside each token of 200,000."""
_PRIORITY: Final = re.compile(r"-?[0-9]{1,3}")
_LOCAL_SALT_KEY: Final = b"warmfleet-local"
"""Without a router there is one tenant; requests with different `cache_salt` still share no blocks."""


@dataclass(frozen=True, slots=True)
class DispatchHeaders:
    """A router's headers about its dispatch. The caller has presented the token, if one is configured."""

    salt: bytes | None = None
    router_id: str = ""
    dispatch: int = 0
    seed: int | None = None
    priority: int | None = None


def read_dispatch(headers: Headers) -> DispatchHeaders:
    """The `x-warmfleet-*` request headers.

    Raises:
        RequestError: one of them is malformed.
    """
    salt = headers.get(SALT_HEADER)
    return DispatchHeaders(
        salt=None if salt is None else _salt(salt),
        router_id=headers.get(ROUTER_ID_HEADER, "")[:MAX_ROUTER_ID_CHARS],
        dispatch=_number(headers, DISPATCH_HEADER) or 0,
        seed=_number(headers, SEED_HEADER),
        priority=_priority(headers.get(PRIORITY_HEADER)),
    )


def _salt(value: str) -> bytes:
    try:
        salt = bytes.fromhex(value)
    except ValueError as error:
        raise RequestError(f"{SALT_HEADER}: expected hexadecimal digits") from error
    if len(salt) > MAX_SALT_BYTES:
        raise RequestError(f"{SALT_HEADER}: expected at most {MAX_SALT_BYTES} bytes, got {len(salt)}")
    return salt


def _number(headers: Headers, name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 20 and int(value) < 2**64):
        raise RequestError(f"{name}: expected an unsigned 64-bit number, got {value[:64]!r}")
    return int(value)


def _priority(value: str | None) -> int | None:
    if value is None:
        return None
    priority = int(value) if _PRIORITY.fullmatch(value) else LOWEST_PRIORITY + 1
    if not HIGHEST_PRIORITY <= priority <= LOWEST_PRIORITY:
        raise RequestError(
            f"{PRIORITY_HEADER}: expected {HIGHEST_PRIORITY} to {LOWEST_PRIORITY}, got {value[:64]!r}"
        )
    return priority


class PromptReader:
    """Encodes prompts and checks them against the model's limits."""

    def __init__(self, encoder: PromptEncoder, ready: EngineReady, memory: SegmentMemory) -> None:
        self._encoder = encoder
        self._ready = ready
        self._memory = memory

    async def chat(self, request: ChatRequest, dispatch: DispatchHeaders) -> list[SequenceRequest]:
        """The `n` sequences of a chat request; raises RequestError."""
        segments = self._memory.of_salt(_request_salt(request, dispatch))
        limit_tokens = self._ready.max_model_length_tokens
        token_ids = await encode_messages(self._encoder, request.messages, segments, limit_tokens)
        return self._sequences(request, [token_ids], dispatch, param="messages")

    async def completion(
        self, request: CompletionRequest, dispatch: DispatchHeaders
    ) -> list[SequenceRequest]:
        """`n` sequences per prompt, those of a prompt together; raises RequestError.

        Equal texts are encoded once and share one list; equal prompts of token ids share theirs already.
        """
        segments = self._memory.of_salt(_request_salt(request, dispatch))
        limit_tokens = self._ready.max_model_length_tokens
        encoded: dict[str, list[int]] = {}
        token_ids = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                if prompt not in encoded:
                    encoded[prompt] = await encode_text(self._encoder, prompt, segments, limit_tokens)
                token_ids.append(encoded[prompt])
            else:
                token_ids.append(prompt)
        return self._sequences(request, token_ids, dispatch, param="prompt")

    async def echoes(
        self, request: CompletionRequest, sequences: Sequence[SequenceRequest]
    ) -> list[EchoedPrompt]:
        """For each of the request's sequences the prompt that precedes its text; empty without `echo`."""
        if not request.echo:
            return [EchoedPrompt()] * len(sequences)
        prompts = {  # by the list object of the token ids
            id(sequence.prompt_token_ids): (prompt, sequence.prompt_token_ids)
            for prompt, sequence in zip(request.prompts, sequences[:: request.n], strict=True)
        }
        with_tokens = request.logprobs is not None
        if sum(len(token_ids) for _, token_ids in prompts.values()) > INLINE_DECODED_TOKENS:
            echoes = await asyncio.to_thread(self._echoes, prompts, with_tokens=with_tokens)
        else:
            echoes = self._echoes(prompts, with_tokens=with_tokens)
        return [echoes[id(sequence.prompt_token_ids)] for sequence in sequences]

    def _echoes(
        self, prompts: Mapping[int, tuple[Prompt, list[int]]], *, with_tokens: bool
    ) -> dict[int, EchoedPrompt]:
        return {
            key: self._echo(prompt, token_ids, with_tokens=with_tokens)
            for key, (prompt, token_ids) in prompts.items()
        }

    def _echo(self, prompt: Prompt, token_ids: list[int], *, with_tokens: bool) -> EchoedPrompt:
        text = prompt if isinstance(prompt, str) else self._encoder.decode(prompt)
        if not with_tokens:
            return EchoedPrompt(text)
        return EchoedPrompt(text, token_ids, text_offsets(self._encoder.tokenizer, token_ids, text))

    def _sequences(
        self,
        request: GenerationRequest,
        prompts: Sequence[list[int]],
        dispatch: DispatchHeaders,
        *,
        param: str,
    ) -> list[SequenceRequest]:
        self._check_bias(request.logit_bias)
        for token_ids in {id(token_ids): token_ids for token_ids in prompts}.values():
            self._check(token_ids, param, least_answer_tokens(request.max_output_tokens))
        self._check_logprobs(request, prompts)
        return [
            SequenceRequest(
                prompt_token_ids=token_ids,
                sampling=sampling,
                may_read_cache=request.may_read_cache,
                salt=_request_salt(request, dispatch),
                priority=request.priority if dispatch.priority is None else dispatch.priority,
                # One dispatch is one unit of load at the router, however many sequences it has.
                router_id=dispatch.router_id,
                dispatch=dispatch.dispatch,
            )
            for token_ids in prompts
            for sampling in self._samplings(request, len(token_ids), dispatch.seed)
        ]

    def _check(self, token_ids: list[int], param: str, least_output_tokens: int) -> None:
        if not token_ids:
            raise RequestError(f"{param}: expected at least one token, got none", param=param)
        highest = max(token_ids)
        if highest >= self._ready.vocabulary_size:
            raise RequestError(
                f"{param}: expected token ids below {self._ready.vocabulary_size}, got {highest}",
                param=param,
            )
        limit = self._ready.max_model_length_tokens
        if len(token_ids) + least_output_tokens > limit:
            raise context_length_error(len(token_ids), limit, param)

    def _check_logprobs(self, request: GenerationRequest, prompts: Sequence[list[int]]) -> None:
        """Bound the answer: it is kept until it is whole."""
        if request.logprobs is None:
            return
        tokens = sum(
            self._output_tokens(request, len(token_ids))
            + (0 if request.prompt_logprobs is None else len(token_ids))
            for token_ids in prompts
        )
        values = tokens * request.n * (1 + request.logprobs)
        if values > MAX_LOGPROBS:
            raise RequestError(
                f"logprobs: this request may ask for {values} log probabilities in all, the limit is "
                f"{MAX_LOGPROBS}; lower max_tokens, n or the number of likely tokens",
                param="logprobs",
            )

    def _output_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Most tokens of one answer: within the request's limit and the rest of the context."""
        rest = self._ready.max_model_length_tokens - prompt_tokens
        return rest if request.max_output_tokens is None else min(request.max_output_tokens, rest)

    def _check_bias(self, logit_bias: dict[int, float]) -> None:
        highest = max(logit_bias, default=0)
        if highest >= self._ready.vocabulary_size:
            raise RequestError(
                f"logit_bias: expected token ids below {self._ready.vocabulary_size}, got {highest}",
                param="logit_bias",
            )

    def _samplings(
        self, request: GenerationRequest, prompt_tokens: int, drawn_seed: int | None
    ) -> list[SamplingParameters]:
        """Sampling parameters of each choice of one prompt: they differ in the seed only."""
        first = self._sampling(request, prompt_tokens, drawn_seed)
        return [
            msgspec.structs.replace(first, seed=(first.seed + index) % 2**64) for index in range(request.n)
        ]

    def _sampling(
        self, request: GenerationRequest, prompt_tokens: int, drawn_seed: int | None
    ) -> SamplingParameters:
        seed = request.seed if request.seed is not None else drawn_seed
        end_token_ids = () if request.ignore_eos else self._ready.end_token_ids
        return SamplingParameters(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=secrets.randbits(64) if seed is None else seed,
            max_output_tokens=self._output_tokens(request, prompt_tokens),
            min_output_tokens=request.min_tokens,
            logit_bias=request.logit_bias,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=request.repetition_penalty,
            stop_token_ids=frozenset((*request.stop_token_ids, *end_token_ids)),
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
        )


async def encode_messages(
    encoder: PromptEncoder,
    messages: Sequence[ChatMessage],
    segments: SaltedSegments | None = None,
    limit_tokens: int | None = None,
) -> list[int]:
    """Token ids of a conversation; a prompt error, or more than `limit_tokens`, becomes a 400."""
    encode = partial(encoder.encode_chat, messages, segments, limit_tokens)
    return await _encoded(encode, conversation_chars(messages), limit_tokens, "messages")


async def encode_text(
    encoder: PromptEncoder,
    text: str,
    segments: SaltedSegments | None = None,
    limit_tokens: int | None = None,
) -> list[int]:
    """Token ids of a text; a prompt error, or more than `limit_tokens`, becomes a 400."""
    encode = partial(encoder.encode_text, text, segments, limit_tokens)
    return await _encoded(encode, len(text), limit_tokens, "prompt")


async def _encoded(
    encode: Callable[[], list[int]], chars: int, limit_tokens: int | None, param: str
) -> list[int]:
    """What `encode` returns, in a thread if the prompt is large."""
    try:
        return await asyncio.to_thread(encode) if chars > INLINE_CHARS else encode()
    except PromptTooLongError as error:
        assert limit_tokens is not None  # else no prompt is too long
        raise context_length_error(None, limit_tokens, param) from error
    except PromptError as error:
        raise RequestError(str(error), param=param) from error


def _request_salt(request: GenerationRequest, dispatch: DispatchHeaders) -> bytes:
    if dispatch.salt is not None:
        return dispatch.salt
    if request.cache_salt:
        return tenant_salt(_LOCAL_SALT_KEY, "", request.cache_salt)
    return b""
