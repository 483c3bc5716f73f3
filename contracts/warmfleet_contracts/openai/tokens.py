"""`POST /tokenize` and `/detokenize`: the requests."""

from typing import Annotated, Final

import msgspec

from warmfleet_contracts.openai.chat import take_messages
from warmfleet_contracts.openai.request_fields import RequestError, RequestFields
from warmfleet_contracts.openai.values import OPTIONAL_NAME, OPTIONAL_STRING, TokenId
from warmfleet_contracts.prompts.chat_message import ChatMessage

MAX_DETOKENIZED_TOKENS: Final = 1_048_576


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /tokenize`: exactly one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None
    token_ids: list[int]


def decode_tokenize_request(body: bytes) -> TokenizeRequest:
    """The tokenize request in `body`.

    Raises:
        RequestError: the body is not JSON, or not exactly one of prompt and messages is there.
    """
    return tokenize_request(RequestFields(body))


def tokenize_request(fields: RequestFields) -> TokenizeRequest:
    """The request that `fields` make up; raises RequestError."""
    model = fields.take("model", OPTIONAL_NAME, None)
    prompt = fields.take("prompt", OPTIONAL_STRING, None)
    messages = take_messages(fields)
    if (prompt is None) == (messages is None):
        raise RequestError("exactly one of prompt and messages is required", param="prompt")
    return TokenizeRequest(model=model, prompt=prompt, messages=messages)


def decode_detokenize_request(body: bytes) -> DetokenizeRequest:
    """The detokenize request in `body`.

    Raises:
        RequestError: the body is not JSON, or tokens is not a list of token ids.
    """
    return detokenize_request(RequestFields(body))


def detokenize_request(fields: RequestFields) -> DetokenizeRequest:
    """The request that `fields` make up; raises RequestError."""
    model = fields.take("model", OPTIONAL_NAME, None)
    token_ids = fields.take("tokens", _TOKENS, None)
    if token_ids is None:
        raise RequestError("tokens: a list of token ids is required", param="tokens")
    return DetokenizeRequest(model=model, token_ids=token_ids)


_TOKENS: Final[msgspec.json.Decoder[list[int] | None]] = msgspec.json.Decoder(
    Annotated[list[TokenId], msgspec.Meta(max_length=MAX_DETOKENIZED_TOKENS)] | None
)
