"""OpenAI's requests as this project serves them: normalised, bounded, or refused with a reason.

Both router and worker decode with these functions, so a request means the same on both sides. null means
absent; unknown fields are ignored and named in `ignored_fields`; fields that would change the answer and
are not served are refused with code `unsupported_parameter`.
"""

from typing import Annotated, Final, Literal

import msgspec

from warmfleet_contracts.prompts import ChatMessage
from warmfleet_contracts.request_fields import (
    RequestError,
    RequestFields,
    decode_value,
    unsupported,
)

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "RequestError",
    "TokenizeRequest",
    "decode_chat_request",
    "decode_completion_request",
    "decode_detokenize_request",
    "decode_tokenize_request",
]

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_PROMPTS: Final = 64
MAX_CHOICES: Final = 8
"""Of one prompt."""
MAX_STOP_STRINGS: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_STOP_TOKEN_IDS: Final = 128
MAX_LOGIT_BIASES: Final = 1024
MAX_IGNORED_FIELDS: Final = 32
DEFAULT_COMPLETION_TOKENS: Final = 16

Prompt = str | list[int]

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
"""Wide enough for every use, and no logit leaves the range of numbers."""
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

NO_EFFECT: Final = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "prediction",
        "priority",
        "request_id",
    }
)
"""Fields that are accepted and change nothing."""

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "length_penalty": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": ([], ["text"]),
    "audio": (),
    "suffix": ("",),
    "web_search_options": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "prompt_embeds": (),
}
"""Field -> values that change nothing. Any other value is refused, because the answer would be wrong."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completion requests have in common, after normalisation."""

    model: str
    stream: bool = False
    include_usage: bool = False
    """A stream ends with a chunk that carries usage and no choices."""
    seed: int | None = None
    """64 bits, unsigned; None lets the server draw one."""
    cache_salt: str = ""
    max_output_tokens: int | None = None
    """None means as many as fit into the model's context."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    """By token id; whether the model has the ids is for the worker to say."""
    min_tokens: int = 0
    """Neither end tokens nor stop tokens or strings end the answer before."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    """Choices per prompt; choice i draws its noise from seed + i."""
    return_token_ids: bool = False
    """Each choice also carries the ids it consists of, as vLLM's field of that name asks."""
    ignored_fields: tuple[str, ...] = ()
    """Names of unknown fields, at most `MAX_IGNORED_FIELDS` of them."""


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`: one sequence per prompt."""

    prompts: list[Prompt]
    echo: bool = False


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /tokenize`: exactly one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None
    token_ids: list[int]


def decode_chat_request(body: bytes) -> ChatRequest:
    """The chat request in `body`.

    Raises:
        RequestError: the body is not JSON, a field is wrong, or one that is not served is set.
    """
    fields = RequestFields(body)
    messages = _take_messages(fields)
    if not messages:
        raise RequestError("messages: at least one message is required", param="messages")
    older = fields.take("max_tokens", _POSITIVE, None)
    newer = fields.take("max_completion_tokens", _POSITIVE, None)
    fields.drop("echo")
    common = _take_common(fields, max_output_tokens=older if newer is None else newer)
    return ChatRequest(messages=messages, **msgspec.structs.asdict(common))


def decode_completion_request(body: bytes) -> CompletionRequest:
    """The text completion request in `body`.

    Raises:
        RequestError: the body is not JSON, a field is wrong, or one that is not served is set.
    """
    fields = RequestFields(body)
    prompts = _take_prompts(fields)
    echo = fields.take("echo", _BOOL, False)
    older = fields.take("max_tokens", _POSITIVE, None)
    newer = fields.take("max_completion_tokens", _POSITIVE, None)
    limit = newer or older or DEFAULT_COMPLETION_TOKENS
    common = _take_common(fields, max_output_tokens=limit)
    return CompletionRequest(prompts=prompts, echo=echo, **msgspec.structs.asdict(common))


def decode_tokenize_request(body: bytes) -> TokenizeRequest:
    """The tokenize request in `body`.

    Raises:
        RequestError: the body is not JSON, or not exactly one of prompt and messages is there.
    """
    fields = RequestFields(body)
    model = fields.take("model", _OPTIONAL_NAME, None)
    prompt = fields.take("prompt", _OPTIONAL_STRING, None)
    messages = _take_messages(fields) or None
    if (prompt is None) == (messages is None):
        raise RequestError("exactly one of prompt and messages is required", param="prompt")
    return TokenizeRequest(model=model, prompt=prompt, messages=messages)


def decode_detokenize_request(body: bytes) -> DetokenizeRequest:
    """The detokenize request in `body`.

    Raises:
        RequestError: the body is not JSON, or tokens is not a list of token ids.
    """
    fields = RequestFields(body)
    model = fields.take("model", _OPTIONAL_NAME, None)
    return DetokenizeRequest(model=model, token_ids=fields.take("tokens", _TOKEN_IDS, []))


def _take_common(fields: RequestFields, *, max_output_tokens: int | None) -> GenerationRequest:
    model = fields.take("model", _OPTIONAL_NAME, None)
    if model is None:
        raise RequestError("model: the name of a served model is required", param="model")
    seed = fields.take("seed", _SEED, None)
    top_k = fields.take("top_k", _TOP_K, 0)
    top_p = fields.take("top_p", _PROBABILITY, 1.0)
    stop_token_ids: list[int] = fields.take("stop_token_ids", _STOP_TOKEN_IDS, [])
    options = fields.take("stream_options", _STREAM_OPTIONS, _StreamOptions())
    for name in NO_EFFECT:
        fields.drop(name)
    for name, neutral in UNSUPPORTED.items():
        fields.refuse_unless(name, neutral)
    request = GenerationRequest(
        model=model,
        stream=fields.take("stream", _BOOL, False),
        include_usage=bool(options.include_usage),
        seed=None if seed is None else seed % 2**64,
        cache_salt=fields.take("cache_salt", _NAME, ""),
        max_output_tokens=max_output_tokens,
        temperature=fields.take("temperature", _TEMPERATURE, 1.0),
        top_p=top_p or 1.0,
        # Nothing but the most likely token fits into a nucleus of probability 0.
        top_k=1 if top_p == 0 else max(top_k, 0),
        min_p=fields.take("min_p", _PROBABILITY, 0.0),
        presence_penalty=fields.take("presence_penalty", _PENALTY, 0.0),
        frequency_penalty=fields.take("frequency_penalty", _PENALTY, 0.0),
        repetition_penalty=fields.take("repetition_penalty", _REPETITION_PENALTY, 1.0),
        logit_bias=fields.take("logit_bias", _LOGIT_BIAS, {}),
        min_tokens=_take_min_tokens(fields, max_output_tokens),
        stop=_take_stop(fields),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=fields.take("ignore_eos", _BOOL, False),
        n=_take_choices(fields),
        return_token_ids=fields.take("return_token_ids", _BOOL, False),
    )
    return msgspec.structs.replace(request, ignored_fields=fields.left[:MAX_IGNORED_FIELDS])


def _take_choices(fields: RequestFields) -> int:
    choices = fields.take("n", _CHOICES, 1)
    best_of = fields.take("best_of", _CHOICES, choices)
    if best_of != choices:
        raise RequestError(
            f"best_of: expected the same as n, {choices}, as no choice is thrown away, got {best_of}",
            param="best_of",
            code="unsupported_parameter",
        )
    return choices


def _take_min_tokens(fields: RequestFields, max_output_tokens: int | None) -> int:
    least = fields.take("min_tokens", _COUNT, 0)
    if max_output_tokens is not None and least > max_output_tokens:
        raise RequestError(
            f"min_tokens: expected at most max_tokens, {max_output_tokens}, got {least}", param="min_tokens"
        )
    return least


def _take_messages(fields: RequestFields) -> list[ChatMessage]:
    messages = []
    for name, raw in fields.take_items("messages"):
        message = decode_value(name, raw, _MESSAGE)
        if message.tool_calls:
            raise unsupported("messages.tool_calls", raw)
        # OpenAI's newer word for the same turn; chat templates know only the older one.
        role = "system" if message.role == "developer" else message.role
        messages.append(ChatMessage(role=role, content=_message_text(name, message)))
    return messages


def _message_text(name: str, message: "_Message") -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role != "assistant":
            raise RequestError(
                f"{name}.content: expected text for role {message.role}, got null", param="messages"
            )
        return ""
    for position, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise RequestError(
                f"{name}.content[{position}].type: only text parts are supported, got {part.type[:64]!r}",
                param="messages",
                code="unsupported_parameter",
            )
    return "\n".join(part.text or "" for part in message.content)


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


def _take_stop(fields: RequestFields) -> tuple[str, ...]:
    value = fields.take("stop", _STOP, [])
    stop = (value,) if isinstance(value, str) else tuple(value)
    if len(stop) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop: expected at most {MAX_STOP_STRINGS} strings, got {len(stop)}", param="stop"
        )
    for text in stop:
        size = len(text.encode())
        if not 0 < size <= MAX_STOP_BYTES:
            raise RequestError(
                f"stop: expected strings of 1 to {MAX_STOP_BYTES} bytes, got {size}", param="stop"
            )
    return stop


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_BOOL: Final = msgspec.json.Decoder(bool)
_POSITIVE: Final[msgspec.json.Decoder[int | None]] = msgspec.json.Decoder(
    Annotated[int, msgspec.Meta(ge=1)] | None
)
_CHOICES: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(
    Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
)
_COUNT: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, lt=2**31)])
_PENALTY: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(Penalty)
_REPETITION_PENALTY: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(RepetitionPenalty)
_LOGIT_BIAS: Final[msgspec.json.Decoder[dict[int, float]]] = msgspec.json.Decoder(
    Annotated[dict[TokenId, Bias], msgspec.Meta(max_length=MAX_LOGIT_BIASES)]
)
_SEED: Final[msgspec.json.Decoder[int | None]] = msgspec.json.Decoder(Seed | None)
_TOP_K: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=-1, lt=2**31)])
_TEMPERATURE: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(Temperature)
_PROBABILITY: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(Probability)
_NAME: Final[msgspec.json.Decoder[str]] = msgspec.json.Decoder(Name)
_OPTIONAL_NAME: Final[msgspec.json.Decoder[str | None]] = msgspec.json.Decoder(Name | None)
_OPTIONAL_STRING: Final[msgspec.json.Decoder[str | None]] = msgspec.json.Decoder(str | None)
_STOP: Final[msgspec.json.Decoder[str | list[str]]] = msgspec.json.Decoder(str | list[str])
_TOKEN_IDS: Final[msgspec.json.Decoder[list[int]]] = msgspec.json.Decoder(list[TokenId])
_STOP_TOKEN_IDS: Final[msgspec.json.Decoder[list[int]]] = msgspec.json.Decoder(
    Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKEN_IDS)]
)
_PROMPT: Final[msgspec.json.Decoder[str | list[str | int | list[int]] | None]] = msgspec.json.Decoder(
    str | list[str | TokenId | list[TokenId]] | None
)
_MESSAGE: Final = msgspec.json.Decoder(_Message)
_STREAM_OPTIONS: Final = msgspec.json.Decoder(_StreamOptions)
