"""Responses as types, for their schemas. Servers build them from parts; tests compare both."""

from typing import Annotated, Any, Final, Literal

import msgspec

from warmfleet_contracts.openai.generation import MAX_TOP_LOGPROBS
from warmfleet_contracts.openapi.requests import Schema

Count = Annotated[int, msgspec.Meta(ge=0)]
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]


class ErrorObject(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    error: ErrorObject


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: Count


class Usage(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails


class ChatMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    refusal: None


FinishReason = Literal["stop", "length"]


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[Byte]


class ChatTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[Byte]
    top_logprobs: Annotated[list[TopLogprob], msgspec.Meta(max_length=MAX_TOP_LOGPROBS)]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None


class TextLogprobs(msgspec.Struct):
    """One element per token; null stands for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[Count]


class ChatChoice(msgspec.Struct):
    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[Count] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct):
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct):
    index: Count
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[Count] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct):
    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TextChoice(msgspec.Struct):
    index: Count
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    """null in all but the last chunk of a stream."""
    token_ids: list[Count] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[TextChoice]
    usage: Usage


class CompletionChunk(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    max_model_len: Count | None


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class Tokenized(msgspec.Struct):
    count: Count
    max_model_len: Count
    tokens: list[Count]


class Detokenized(msgspec.Struct):
    prompt: str


class Status(msgspec.Struct):
    status: str


class Version(msgspec.Struct):
    version: str


class Decisions(msgspec.Struct):
    decisions: list[dict[str, Any]]


RESPONSES: Final = (
    *(Error, ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk),
    *(Model, ModelList, Tokenized, Detokenized, Status, Version, Decisions),
)


def response_schemas() -> dict[str, Schema]:
    """Schemas of all responses and their parts, by component name."""
    _, components = msgspec.json.schema_components(RESPONSES, ref_template="#/components/schemas/{name}")
    return components
