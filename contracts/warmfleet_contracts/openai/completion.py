"""`POST /v1/completions`: the request."""

from typing import Final

import msgspec

from warmfleet_contracts.openai.generation import GenerationRequest, take_common
from warmfleet_contracts.openai.values import BOOL, POSITIVE, TokenId
from warmfleet_contracts.request_fields import RequestError, RequestFields

MAX_PROMPTS: Final = 64
DEFAULT_COMPLETION_TOKENS: Final = 16

Prompt = str | list[int]


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`: one sequence per prompt."""

    prompts: list[Prompt]
    echo: bool = False


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
    older = fields.take("max_tokens", POSITIVE, None)
    newer = fields.take("max_completion_tokens", POSITIVE, None)
    limit = newer or older or DEFAULT_COMPLETION_TOKENS
    common = take_common(fields, max_output_tokens=limit)
    return CompletionRequest(prompts=prompts, echo=echo, **msgspec.structs.asdict(common))


def _take_prompts(fields: RequestFields) -> list[Prompt]:
    value = fields.take("prompt", _PROMPT, None)
    if value is None or value == []:
        raise RequestError("prompt: text or token ids are required", param="prompt")
    if isinstance(value, str):
        return [value]
    if all(isinstance(item, int) for item in value):
        return [[item for item in value if isinstance(item, int)]]
    prompts: list[Prompt] = [item for item in value if not isinstance(item, int)]
    kinds = {type(item) for item in value}
    if len(kinds) > 1:
        raise RequestError("prompt: expected one kind of element, got several", param="prompt")
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(
            f"prompt: expected at most {MAX_PROMPTS} prompts, got {len(prompts)}", param="prompt"
        )
    return prompts


_PROMPT: Final[msgspec.json.Decoder[str | list[str | int | list[int]] | None]] = msgspec.json.Decoder(
    str | list[str | TokenId | list[TokenId]] | None
)
