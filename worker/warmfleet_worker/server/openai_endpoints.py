"""The OpenAI endpoints: completions, models, tokens."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from warmfleet_contracts.openai import (
    GenerationRequest,
    RequestError,
    decode_chat_request,
    decode_completion_request,
    decode_detokenize_request,
    decode_tokenize_request,
)
from warmfleet_runtime.http.body import decode_body, read_body
from warmfleet_worker.server.answer_tokens import EchoedPrompt
from warmfleet_worker.server.answers import AnswerHead, ChatDialect, CompletionDialect
from warmfleet_worker.server.requests import (
    INLINE_DECODED_TOKENS,
    PromptReader,
    encode_messages,
    encode_text,
    read_dispatch,
)
from warmfleet_worker.server.state import WorkerState
from warmfleet_worker.server.streaming import Answer, AnswerPlan


class OpenAIEndpoints:
    """What OpenAI's clients call."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker

    async def chat(self, request: Request) -> Response:
        dispatch = read_dispatch(request.headers)
        decoded = await decode_body(await read_body(request), decode_chat_request)
        reader = self._admit(decoded, decoded.n)
        sequences = await reader.chat(decoded, dispatch)
        dialect = ChatDialect(_head(request, decoded), self._worker.token_texts)
        echoes = [EchoedPrompt()] * len(sequences)
        plan = AnswerPlan(request=decoded, dialect=dialect, sequences=sequences, echoes=echoes)
        return self._answer(request, plan)

    async def completion(self, request: Request) -> Response:
        dispatch = read_dispatch(request.headers)
        decoded = await decode_body(await read_body(request), decode_completion_request)
        reader = self._admit(decoded, len(decoded.prompts) * decoded.n)
        sequences = await reader.completion(decoded, dispatch)
        echoes = await reader.echoes(decoded, sequences)
        dialect = CompletionDialect(_head(request, decoded), self._worker.token_texts)
        plan = AnswerPlan(request=decoded, dialect=dialect, sequences=sequences, echoes=echoes)
        return self._answer(request, plan)

    async def models(self, request: Request) -> Response:
        del request
        names = self._worker.settings.served_names
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["id"]
        self._check_model(name)
        return JSONResponse(self._model(name))

    async def tokenize(self, request: Request) -> Response:
        decoded = await decode_body(await read_body(request), decode_tokenize_request)
        self._check_model(decoded.model)
        # Of any number of tokens: who counts wants to know by how much a text exceeds the context.
        encoder = self._worker.encoder
        if decoded.messages is not None:
            token_ids = await encode_messages(encoder, decoded.messages)
        else:
            token_ids = await encode_text(encoder, decoded.prompt or "")
        limit = self._worker.ready_engine().max_model_length_tokens
        return JSONResponse({"count": len(token_ids), "max_model_len": limit, "tokens": token_ids})

    async def detokenize(self, request: Request) -> Response:
        decoded = await decode_body(await read_body(request), decode_detokenize_request)
        self._check_model(decoded.model)
        decode = self._worker.encoder.decode
        # Many tokens take a while, and live streams must not wait for them.
        text = (
            await asyncio.to_thread(decode, decoded.token_ids)
            if len(decoded.token_ids) > INLINE_DECODED_TOKENS
            else decode(decoded.token_ids)
        )
        return JSONResponse({"prompt": text})

    def _admit(self, decoded: GenerationRequest, sequences: int) -> PromptReader:
        """Refuse what cannot be served now, before any work on the prompts."""
        self._check_model(decoded.model)
        ready = self._worker.ready_engine()
        self._worker.check_capacity(sequences)
        self._worker.metrics.on_ignored_fields(len(decoded.ignored_fields))
        return PromptReader(self._worker.encoder, ready, self._worker.segment_memory)

    def _answer(self, request: Request, plan: AnswerPlan) -> Response:
        facts = request.state.facts
        facts.update(model=plan.request.model, stream=plan.request.stream)
        if plan.request.ignored_fields:
            facts["ignored_fields"] = len(plan.request.ignored_fields)
        return Answer(self._worker, plan, facts)

    def _check_model(self, name: str | None) -> None:
        names = self._worker.settings.served_names
        if name is not None and name not in names:
            raise RequestError(
                f"model: {name[:64]!r} is not served here; served: {', '.join(names)}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _model(self, name: str) -> dict[str, object]:
        ready = self._worker.engine.ready
        return {
            "id": name,
            "object": "model",
            "created": self._worker.started_seconds,
            "owned_by": "warmfleet",
            "root": name,  # vLLM's field; its benchmark client takes it for the model's name
            "max_model_len": None if ready is None else ready.max_model_length_tokens,
        }


def _head(request: Request, decoded: GenerationRequest) -> AnswerHead:
    return AnswerHead(request_id=request.state.request_id, created=int(time.time()), model=decoded.model)
