"""From a decoded request to bytes: a plain answer or an event stream, cancelled if the client disconnects."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.worker_api import (
    ADMITTED_AFTER_HEADER,
    CACHED_TOKENS_HEADER,
    FIRST_TOKEN_AFTER_HEADER,
    GENERATED_TOKENS_HEADER,
    LAST_BLOCK_HEADER,
    POSITION_HEADER,
    PROMPT_TOKENS_HEADER,
    TOTAL_CACHED_TOKENS_HEADER,
    TOTAL_PROMPT_TOKENS_HEADER,
)
from warmfleet_contracts.openai import GenerationRequest, RequestError
from warmfleet_runtime.http.disconnect import cancel_on_disconnect
from warmfleet_runtime.http.event_stream import EVENT_STREAM_HEADERS, EventWriter, SlowClientError
from warmfleet_runtime.http.response_body import ResponseBody, response_body
from warmfleet_worker.server.answer_tokens import EchoedPrompt
from warmfleet_worker.server.answers import DONE_EVENT, Dialect
from warmfleet_worker.server.choices import (
    SLOW_READER,
    ChoiceDecoder,
    Delta,
    all_finished,
    joined,
    total_usage,
)
from warmfleet_worker.server.detokenizer import Detokenizer
from warmfleet_worker.server.engine_client import EngineGoneError, SequenceRequest
from warmfleet_worker.server.plain_answers import PlainAnswerProgress
from warmfleet_worker.server.state import WorkerState

INLINE_LOGPROBS: Final = 64
"""Tokens with log probabilities that are encoded in the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """One decoded request and the sequences that answer it."""

    request: GenerationRequest
    dialect: Dialect
    sequences: Sequence[SequenceRequest]
    echoes: Sequence[EchoedPrompt]
    """The prompt before each choice, for `echo`."""


class Answer(Response):
    """Runs the sequences of one request and writes the answer."""

    def __init__(self, worker: WorkerState, plan: AnswerPlan, facts: dict[str, Any]) -> None:
        """`facts` collects the fields of the request's log line."""
        super().__init__()
        self._worker = worker
        self._plan = plan
        self._facts = facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._worker.open_answers)
            wake = asyncio.Event()
            choices = self._submit(stack, wake)
            unfinished = "error"
            try:
                if not await self._answer_client(scope, receive, choices, wake, send):
                    unfinished = "abort"
                    self._worker.metrics.on_abort()
            finally:
                for choice in choices:
                    if not choice.finish_reason:
                        self._worker.metrics.on_unfinished(unfinished)
                usage = total_usage(choices)
                self._facts.update(
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                    completion_tokens=usage.completion_tokens,
                    first_token_seconds=choices[0].first_token_seconds,
                    finish_reasons=[choice.finish_reason or unfinished for choice in choices],
                )

    def _submit(self, stack: ExitStack, wake: asyncio.Event) -> list[ChoiceDecoder]:
        worker, plan = self._worker, self._plan
        worker.check_capacity(len(plan.sequences))
        try:
            handles = worker.engine.submit(plan.sequences, wake)
        except EngineGoneError as error:
            raise worker.not_ready_error(str(error)) from error
        for handle in handles:
            stack.enter_context(handle)
        if not plan.request.stream:
            first = plan.sequences[0]
            sequence_ids = [handle.sequence_id for handle in handles]
            stack.enter_context(
                worker.events.plain_answers.open(first.router_id, first.dispatch, sequence_ids)
            )
        return [
            ChoiceDecoder(
                index,
                handle,
                Detokenizer(worker.encoder.tokenizer, plan.request.stop, min_tokens=plan.request.min_tokens),
                sequence,
                worker.metrics,
                echo=plan.echoes[index],
                return_token_ids=plan.request.return_token_ids,
                lists_all_tokens=plan.dialect.lists_all_tokens,
                shares_prompt=index % plan.request.n > 0,
            )
            for index, (handle, sequence) in enumerate(zip(handles, plan.sequences, strict=True))
        ]

    async def _answer_client(
        self,
        scope: Scope,
        receive: Receive,
        choices: list[ChoiceDecoder],
        wake: asyncio.Event,
        send: Send,
    ) -> bool:
        """False if the client disconnected first, or did not read the answer in time."""
        try:
            async with cancel_on_disconnect(receive) as client:
                await self._answer(choices, wake, response_body(scope), send)
        except SlowClientError:
            return False
        return not client.disconnected

    async def _answer(
        self, choices: list[ChoiceDecoder], wake: asyncio.Event, body: ResponseBody, send: Send
    ) -> None:
        # After `ping_seconds` a stream starts without the headers about the cache.
        await wait_for_cached_prefix(choices[0], wake, self._worker.settings.ping_seconds)
        if self._plan.request.stream:
            await self._stream(choices, wake, body, send)
        else:
            await self._whole(choices, wake, send)

    async def _whole(self, choices: list[ChoiceDecoder], wake: asyncio.Event, send: Send) -> None:
        pieces: list[list[Delta]] = [[] for _ in choices]
        while True:
            wake.clear()
            for choice in choices:
                if (delta := choice.take()) is not None:
                    pieces[choice.index].append(delta)
            if all_finished(choices):
                break
            await wake.wait()
        answers = [joined(index, taken) for index, taken in enumerate(pieces)]
        usage = total_usage(choices)
        body = await _encoded(answers, lambda: self._plan.dialect.whole(answers, usage))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            GENERATED_TOKENS_HEADER: str(usage.completion_tokens),
            TOTAL_PROMPT_TOKENS_HEADER: str(usage.prompt_tokens),
            TOTAL_CACHED_TOKENS_HEADER: str(usage.cached_tokens),
            **cached_prefix_headers(choices[0]),
            **progress_headers(self._worker.events.plain_answers.progress(choices[0].handle.sequence_id)),
        }
        await send(_start(raw_headers(headers)))
        await self._end(send, body)

    async def _stream(
        self, choices: list[ChoiceDecoder], wake: asyncio.Event, body: ResponseBody, send: Send
    ) -> None:
        if choices[0].handle.finished and choices[0].handle.cached_prefix is None:
            choices[0].take()  # raises: an error is still an HTTP status here
        await send(_start([*EVENT_STREAM_HEADERS, *raw_headers(cached_prefix_headers(choices[0]))]))
        settings, dialect = self._worker.settings, self._plan.dialect
        # With the first token, not before: the first event is what clients and routers take for it.
        opening = dialect.opening(len(choices))
        with EventWriter(
            body, ping_seconds=settings.ping_seconds, write_seconds=settings.write_seconds
        ) as writer:
            while True:
                wake.clear()
                events, error = await self._next_events(choices)
                if events:
                    events, opening = opening + events, b""
                if error is not None or all_finished(choices):
                    break
                if events:
                    await writer.write(events)
                await wake.wait()
        if error is not None:
            self._facts["error"] = error.message
            await self._end(send, events + error.event())
            if error.code == SLOW_READER:
                raise SlowClientError(error.message)
            return
        if self._plan.request.include_usage:
            events += dialect.usage_event(total_usage(choices))
        await self._end(send, events + DONE_EVENT)

    async def _next_events(self, choices: Sequence[ChoiceDecoder]) -> tuple[bytes, RequestError | None]:
        """What a step of the engine brought, and its error: the events of all choices are one write."""
        events: list[bytes] = []
        for choice in choices:
            try:
                delta = choice.take()
            except RequestError as error:
                return b"".join(events), error
            if delta is not None:
                events.append(await _encoded([delta], partial(self._plan.dialect.event, delta)))
        return b"".join(events), None

    async def _end(self, send: Send, body: bytes) -> None:
        """Write the last part of the body."""
        try:
            async with asyncio.timeout(self._worker.settings.write_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": False})
        except TimeoutError as error:
            raise SlowClientError from error


async def _encoded(answers: Sequence[Delta], encode: Callable[[], bytes]) -> bytes:
    """Run `encode`, in a thread for many log probabilities, so that live streams do not wait."""
    if sum(len(answer.logprobs or ()) for answer in answers) > INLINE_LOGPROBS:
        return await asyncio.to_thread(encode)
    return encode()


async def wait_for_cached_prefix(choice: ChoiceDecoder, wake: asyncio.Event, timeout_seconds: float) -> None:
    """Wait until the engine has matched the sequence against its cache, or ended it, or time is up."""
    handle = choice.handle
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            while handle.cached_prefix is None and not handle.finished:
                wake.clear()
                await wake.wait()
    choice.record_admission()


def cached_prefix_headers(choice: ChoiceDecoder) -> dict[str, str]:
    """Headers about the first sequence; before it is matched only the prompt's length is known."""
    headers = {PROMPT_TOKENS_HEADER: str(choice.prompt_tokens)}
    cached_prefix = choice.handle.cached_prefix
    if cached_prefix is not None:
        headers[CACHED_TOKENS_HEADER] = str(cached_prefix.cached_tokens)
        headers[POSITION_HEADER] = cached_prefix.position
        if cached_prefix.last_block:
            headers[LAST_BLOCK_HEADER] = cached_prefix.last_block.hex()
    return headers


def progress_headers(progress: PlainAnswerProgress) -> dict[str, str]:
    """Headers about the times of a plain answer, as far as they are known."""
    times = {
        ADMITTED_AFTER_HEADER: progress.admitted_after_seconds,
        FIRST_TOKEN_AFTER_HEADER: progress.first_token_after_seconds,
    }
    return {name: f"{seconds:.6f}" for name, seconds in times.items() if seconds is not None}


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _start(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": headers}
