"""Request schemas, recorded from the decoders: the fields they take, with type and default."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from warmfleet_contracts.openai.chat import ROLES, chat_request
from warmfleet_contracts.openai.completion import MAX_PROMPTS, completion_request
from warmfleet_contracts.openai.generation import (
    MAX_LOGIT_BIASES,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    Bias,
)
from warmfleet_contracts.openai.request_fields import RequestFields
from warmfleet_contracts.openai.tokens import detokenize_request, tokenize_request
from warmfleet_contracts.openai.values import TokenId

Schema = dict[str, Any]
_T = TypeVar("_T")


class TracedFields(RequestFields):
    """Fields that record how a decoder took them."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.types: dict[str, tuple[Any, object]] = {}
        """Name -> type and default of a field that has an effect."""
        self.neutral: dict[str, tuple[object, ...]] = {}
        """Name -> the values of a field that is otherwise refused."""
        self.without_effect: set[str] = set()

    def take(self, name: str, decoder: msgspec.json.Decoder[_T], default: _T) -> _T:
        self.types[name] = (decoder.type, default)
        return super().take(name, decoder, default)

    def refuse_unless(self, name: str, neutral: tuple[object, ...]) -> None:
        self.neutral[name] = neutral
        super().refuse_unless(name, neutral)

    def drop(self, name: str) -> None:
        self.without_effect.add(name)
        super().drop(name)


def request_schemas() -> dict[str, Schema]:
    """Schemas of all request bodies, by component name."""
    return {
        name: _request_schema(decode, example, required, _REFINED | _REFINED_OF.get(name, {}))
        for name, (decode, example, required) in _REQUESTS.items()
    }


def traced(decode: Callable[[RequestFields], object], example: Schema) -> TracedFields:
    """What `decode` takes from `example`, which it accepts."""
    fields = TracedFields(msgspec.json.encode(example))
    decode(fields)
    return fields


def _request_schema(
    decode: Callable[[RequestFields], object],
    example: Schema,
    required: tuple[str, ...],
    refined: Mapping[str, Schema],
) -> Schema:
    fields = traced(decode, example)
    properties = {
        name: _property(refined.get(name) or inlined_schema(type_), default, is_required=name in required)
        for name, (type_, default) in fields.types.items()
    }
    for name, neutral in fields.neutral.items():
        properties[name] = {
            "enum": [*neutral, None],
            "description": "Not served: any other value is refused with code `unsupported_parameter`.",
        }
    for name in fields.without_effect:
        properties[name] = {"description": "Accepted, no effect."}
    schema: Schema = {"type": "object", "properties": dict(sorted(properties.items()))}
    if required:
        schema["required"] = list(required)
    if decode is tokenize_request:
        schema["oneOf"] = [_only("prompt", "messages"), _only("messages", "prompt")]
    return schema


def _only(present: str, absent: str) -> Schema:
    """`present` is there and no null, `absent` is not there, or null."""
    return {
        "required": [present],
        "properties": {present: {"not": {"type": "null"}}, absent: {"type": "null"}},
    }


def _property(schema: Schema, default: object, *, is_required: bool) -> Schema:
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind != {"type": "null"}]
    further = {key: schema[key] for key in ("description",) if key in schema}
    if is_required:
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds, **further}
    nullable: Schema = {"anyOf": [*kinds, {"type": "null"}], **further}
    return nullable if default is None else {**nullable, "default": msgspec.to_builtins(default)}


def inlined_schema(type_: Any) -> Schema:
    """JSON schema of a type whose parts are not worth names of their own."""
    (schema,), components = msgspec.json.schema_components([type_], ref_template="{name}")
    if "$ref" not in schema:
        return schema
    component = dict(components[schema["$ref"]])
    del component["title"]
    return component


_TEXT_PART: Final[Schema] = {
    "type": "object",
    "properties": {"type": {"enum": ["text"], "default": "text"}, "text": {"type": "string"}},
    "required": ["text"],
}
_TEXT: Final[Schema] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}
_NO_TOOL_CALLS: Final[Schema] = {"anyOf": [{"type": "array", "maxItems": 0}, {"type": "null"}]}
_MESSAGE: Final[Schema] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "role": {"enum": [role for role in ROLES if role != "assistant"]},
                "content": _TEXT,
                "tool_calls": _NO_TOOL_CALLS,
            },
            "required": ["role", "content"],
        },
        {
            "type": "object",
            "properties": {
                "role": {"enum": ["assistant"]},
                "content": {"anyOf": [*_TEXT["anyOf"], {"type": "null"}]},
                "tool_calls": _NO_TOOL_CALLS,
            },
            "required": ["role"],
        },
    ]
}
_TOKEN_IDS: Final[Schema] = {"type": "array", "items": inlined_schema(TokenId), "minItems": 1}
_STOP_STRING: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_BYTES}

_REFINED: Final[dict[str, Schema]] = {
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
        "additionalProperties": inlined_schema(Bias),
        "maxProperties": MAX_LOGIT_BIASES,
        "description": "By token id.",
    },
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "stop": {
        "anyOf": [
            _STOP_STRING,
            {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP_STRINGS},
        ],
        "description": f"Strings of at most {MAX_STOP_BYTES} bytes of UTF-8 each.",
    },
}
"""Checks of the decoders beyond their types."""

_TEXT_PROMPT: Final[Schema] = {"type": "string", "minLength": 1}
_REFINED_OF: Final[dict[str, dict[str, Schema]]] = {
    "CompletionRequest": {
        "prompt": {
            "anyOf": [
                _TEXT_PROMPT,
                {"type": "array", "items": _TEXT_PROMPT, "minItems": 1, "maxItems": MAX_PROMPTS},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ],
        },
        "logprobs": {
            "anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS}, {"enum": [False]}],
        },
    },
}
"""The same for names whose meaning depends on the request."""

_CHAT: Final[Schema] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
_REQUESTS: Final[dict[str, tuple[Callable[[RequestFields], object], Schema, tuple[str, ...]]]] = {
    "ChatRequest": (chat_request, _CHAT, ("model", "messages")),
    "CompletionRequest": (completion_request, {"model": "m", "prompt": "x"}, ("model", "prompt")),
    "TokenizeRequest": (tokenize_request, {"prompt": "x"}, ()),
    "DetokenizeRequest": (detokenize_request, {"tokens": [1]}, ("tokens",)),
}
"""Component -> decoder, a body that it takes whole, fields that must be there."""
