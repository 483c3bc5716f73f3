"""`POST /v1/completions`: the request."""

from typing import Annotated, Final, cast

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.openai.generation import MAX_TOP_LOGPROBS, GenerationRequest, take_common
from warmfleet_contracts.openai.request_fields import RequestError, RequestFields
from warmfleet_contracts.openai.values import BOOL, COUNT, TokenId

MAX_PROMPTS: Final = 64
DEFAULT_COMPLETION_TOKENS: Final = 16

Prompt = str | list[int]


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`: one sequence per prompt."""

    prompts: list[Prompt]
    echo: bool = False
    """The answer begins with the prompt, and its log probabilities with the prompt's."""

    @property
    def prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None


def decode_completion_request(body: bytes) -> CompletionRequest:
    """The text completion request in `body`.

    Raises:
        RequestError: the body is not JSON, a field is wrong, or one that is not served is set.
    """
    return completion_request(RequestFields(body))


def completion_request(fields: RequestFields) -> CompletionRequest:
    """The request that `fields` make up; raises RequestError."""
    prompts = _take_prompts(fields)
    echo = fields.take("echo", BOOL, False)
    older = fields.take("max_tokens", COUNT, DEFAULT_COMPLETION_TOKENS)
    newer = fields.take("max_completion_tokens", _OPTIONAL_COUNT, None)
    limit = older if newer is None else newer
    if not limit and not echo:
        raise RequestError("max_tokens: expected at least 1, or echo to be true, got 0", param="max_tokens")
    # A field of chat requests only.
    fields.refuse_unless("top_logprobs", (0,))
    common = take_common(fields, max_output_tokens=limit, logprobs=_take_logprobs(fields))
    return CompletionRequest(prompts=prompts, echo=echo, **msgspec.structs.asdict(common))


def _take_logprobs(fields: RequestFields) -> int | None:
    logprobs = fields.take("logprobs", _LOGPROBS, None)
    if logprobs is True:
        raise RequestError(
            f"logprobs: expected a number from 0 to {MAX_TOP_LOGPROBS}, got true", param="logprobs"
        )
    return None if logprobs is False else logprobs


def _take_prompts(fields: RequestFields) -> list[Prompt]:
    of_token_ids = _token_id_prompts(fields.json("prompt"))
    if of_token_ids is not None:
        fields.drop("prompt")
        return of_token_ids
    value = fields.take("prompt", _PROMPT, None)
    if value is None or value == []:
        raise RequestError("prompt: text or token ids are required", param="prompt")
    if isinstance(value, str):
        return [value]
    kinds = set(map(type, value))
    if kinds == {int}:
        return [cast("list[int]", value)]
    prompts = cast("list[Prompt]", value)
    if len(kinds) > 1:
        raise RequestError("prompt: expected one kind of element, got several", param="prompt")
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(
            f"prompt: expected at most {MAX_PROMPTS} prompts, got {len(prompts)}", param="prompt"
        )
    return prompts


def _token_id_prompts(array: bytes) -> list[Prompt] | None:
    """The prompts in a JSON array of at most `MAX_PROMPTS` arrays of token ids; equal ones are one list.

    None for anything else. One by one, and equal ones once: a decoder holds the interpreter's lock, and every
    stream waits, until it has decoded all that it is given.
    """
    prompts: list[Prompt] = []
    distinct: dict[bytes, list[int]] = {}
    start = array.find(b"[") + 1
    while (begin := array.find(b"[", start)) >= 0:
        end = array.find(b"]", begin) + 1
        prompt = array[begin:end]
        if len(prompts) == MAX_PROMPTS or array[start:begin].strip(_BETWEEN_PROMPTS):
            return None
        if prompt not in distinct:
            try:
                distinct[prompt] = _TOKEN_IDS.decode(prompt)
            except UNDECODABLE:
                return None
        prompts.append(distinct[prompt])
        start = end
    return prompts if prompts and not array[start:].strip(_AFTER_PROMPTS) else None


_TOKEN_IDS: Final = msgspec.json.Decoder(list[TokenId])
_BETWEEN_PROMPTS: Final = b", \t\r\n"
_AFTER_PROMPTS: Final = b"] \t\r\n"
_PROMPT: Final[msgspec.json.Decoder[str | list[str | int | list[int]] | None]] = msgspec.json.Decoder(
    str | list[str | TokenId | list[TokenId]] | None
)
_OPTIONAL_COUNT: Final[msgspec.json.Decoder[int | None]] = msgspec.json.Decoder(COUNT.type | None)
_LOGPROBS: Final[msgspec.json.Decoder[int | bool | None]] = msgspec.json.Decoder(
    Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | bool | None
)
