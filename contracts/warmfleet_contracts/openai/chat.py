"""`POST /v1/chat/completions`: the request."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from warmfleet_contracts.openai.generation import MAX_TOP_LOGPROBS, GenerationRequest, take_common
from warmfleet_contracts.openai.request_fields import RequestError, RequestFields, decode_value, unsupported
from warmfleet_contracts.openai.values import BOOL, POSITIVE
from warmfleet_contracts.prompts.chat_message import ChatMessage


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]


def decode_chat_request(body: bytes) -> ChatRequest:
    """The chat request in `body`.

        request = decode_chat_request(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}')
        assert request.messages == [ChatMessage("user", "hi")]
        assert request.max_output_tokens is None

    Raises:
        RequestError: the body is not JSON, a field is wrong, or one that is not served is set.
    """
    return chat_request(RequestFields(body))


def chat_request(fields: RequestFields) -> ChatRequest:
    """The request that `fields` make up; raises RequestError."""
    messages = take_messages(fields)
    if messages is None:
        raise RequestError("messages: at least one message is required", param="messages")
    older = fields.take("max_tokens", POSITIVE, None)
    newer = fields.take("max_completion_tokens", POSITIVE, None)
    fields.drop("echo")
    common = take_common(
        fields, max_output_tokens=older if newer is None else newer, logprobs=_take_logprobs(fields)
    )
    return ChatRequest(messages=messages, **msgspec.structs.asdict(common))


def _take_logprobs(fields: RequestFields) -> int | None:
    top = fields.take("top_logprobs", _TOP_LOGPROBS, 0)
    if fields.take("logprobs", BOOL, False):
        return top
    if top:
        raise RequestError(
            f"top_logprobs: expected logprobs to be true beside it, got {top} alone", param="top_logprobs"
        )
    return None


def take_messages(fields: RequestFields) -> list[ChatMessage] | None:
    """The conversation, None without one; raises RequestError."""
    items = fields.take_items("messages")
    if items is None:
        return None
    if not items:
        raise RequestError("messages: at least one message is required", param="messages")
    messages = []
    for name, raw in items:
        message = decode_value(name, raw, _MESSAGE)
        if message.tool_calls:
            raise unsupported("messages.tool_calls", raw)
        # OpenAI's newer name of the same role; chat templates have only the older one.
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


Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: Final[tuple[str, ...]] = get_args(Role)


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


class _Message(msgspec.Struct):
    role: Role
    content: str | list[_Part] | None = None
    tool_calls: list[msgspec.Raw] | None = None


_MESSAGE: Final = msgspec.json.Decoder(_Message)
_TOP_LOGPROBS: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(
    Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)]
)
