"""The fields of one JSON request body, taken one by one, and the error that refuses a request.

Every refusal names the field, what was expected and what came, in OpenAI's error shape. Bounds are
checked before anything large is built.
"""

import re
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.openai.server_sent_event import server_sent_event

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_JSON_DEPTH: Final = 64
MAX_JSON_BRACKETS: Final = 1_000_000
"""Objects and arrays in one body, opening and closing brackets counted."""
MAX_JSON_STRINGS: Final = 262_144
"""In one body, names of fields included: each costs more than its bytes to read."""
MAX_PREVIEW_BYTES: Final = 64
MAX_REASON_CHARS: Final = 256

INVALID_REQUEST: Final = "invalid_request_error"

_T = TypeVar("_T")
_WHOLE_NUMBER: Final = re.compile(rb"(-?[0-9]+)\.0+")
"""An integer, as JSON has it and some clients write it."""
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SLICE_BYTES: Final = 1024 * 1024
_STRUCTURE: Final = b'[]{}"'
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(_STRUCTURE))
_DEPTH_CHANGE: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class RequestError(WarmfleetError):
    """A request is refused: HTTP status and OpenAI's error fields."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID_REQUEST,  # noqa: A002 - OpenAI's name of the field
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> bytes:
        """The error as OpenAI's JSON object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The error as a server-sent event, for a stream whose status has been sent already."""
        return server_sent_event(self.body())

    def headers(self) -> dict[str, str]:
        """Response headers that belong to this error."""
        if self.retry_after_seconds is None:
            return {}
        return {"retry-after": str(max(self.retry_after_seconds, 1))}


class RequestFields:
    """The top-level fields of one request body; those that are never taken are unknown fields."""

    def __init__(self, body: bytes) -> None:
        """Cut `body` into fields.

        Raises:
            RequestError: not a JSON object, too deep, or too many brackets.
        """
        check_json_depth(body)
        try:
            self._fields = _FIELDS.decode(body)
        except msgspec.ValidationError as error:
            raise RequestError(f"the body must be a JSON object: {_reason(error)}") from error
        except UNDECODABLE as error:
            raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error

    def take(self, name: str, decoder: msgspec.json.Decoder[_T], default: _T) -> _T:
        """The value of field `name`, or `default` when it is absent or null.

        Raises:
            RequestError: the value is not what `decoder` expects.
        """
        raw = self._fields.pop(name, None)
        if raw is None or bytes(raw) == b"null":
            return default
        return decode_value(name, raw, decoder)

    def json(self, name: str) -> bytes:
        """The JSON of field `name`, which is not taken; empty when it is absent."""
        return bytes(self._fields.get(name, b""))

    def take_items(self, name: str) -> list[tuple[str, msgspec.Raw]] | None:
        """The elements of the array `name` with the names that errors give them, `name[0]` and on.

        None when it is absent or null; raises RequestError for what is no array.
        """
        items = self.take(name, _RAW_LIST, None)
        if items is None:
            return None
        return [(f"{name}[{position}]", raw) for position, raw in enumerate(items)]

    def refuse_unless(self, name: str, neutral: tuple[object, ...]) -> None:
        """Take a field that is not served; any value but null and the `neutral` ones would change the answer.

        Raises:
            RequestError: with code `unsupported_parameter`.
        """
        raw = self._fields.pop(name, None)
        if raw is None:
            return
        value = decode_value(name, raw, _ANY)
        if value is None or any(_is_same(value, kept) for kept in neutral):
            return
        raise unsupported(name, raw)

    def drop(self, name: str) -> None:
        """Take a field that has no effect here."""
        self._fields.pop(name, None)

    @property
    def left(self) -> tuple[str, ...]:
        """Names of the fields that were not taken."""
        return tuple(self._fields)


def decode_value(name: str, raw: msgspec.Raw, decoder: msgspec.json.Decoder[_T]) -> _T:
    """`raw` as the decoder's type; `name` is how an error calls the value.

    Raises:
        RequestError: with `param` set to the field's name.
    """
    try:
        return decoder.decode(raw)
    except UNDECODABLE as error:
        if (whole := _WHOLE_NUMBER.fullmatch(raw)) is not None:
            return decode_value(name, msgspec.Raw(whole[1]), decoder)
        param = name.partition("[")[0].partition(".")[0]
        raise RequestError(f"{name}: {_reason(error)}, got {preview(raw)}", param=param) from error


def unsupported(name: str, raw: msgspec.Raw) -> RequestError:
    """The refusal of a field that would change the answer and is not served."""
    return RequestError(
        f"{name} is not supported by this server, got {preview(raw)}; leave the field out",
        param=name,
        code="unsupported_parameter",
    )


def preview(raw: msgspec.Raw | bytes) -> str:
    """The beginning of a value as it came, fit for an error message."""
    value = bytes(raw)
    cut = value[:MAX_PREVIEW_BYTES].decode("utf-8", "replace")
    return cut if len(value) <= MAX_PREVIEW_BYTES else f"{cut}... ({len(value)} bytes)"


def check_json_depth(body: bytes) -> None:
    r"""Refuse a body that nests deeper than `MAX_JSON_DEPTH`, before anything is built from it.

    What is neither bracket nor quote is deleted first, so that the scan in Python is short. Escaped
    quotes go before that: `\\` pairs, then `\"`.

    Raises:
        RequestError: too deep, or more than `MAX_JSON_BRACKETS` or `MAX_JSON_STRINGS`.
    """
    # Not fewer than half of them, however they are escaped. In slices, because a search for two bytes is slow
    # and other threads wait for it.
    escaped = sum(
        body.count(rb"\"", start, start + _SLICE_BYTES + 1) for start in range(0, len(body), _SLICE_BYTES)
    )
    strings = (body.count(b'"') - escaped) // 2
    if strings > MAX_JSON_STRINGS:
        raise RequestError(
            f"the body has {strings} JSON strings, the limit is {MAX_JSON_STRINGS}", code="json_too_large"
        )
    opening = body.count(b"[") + body.count(b"{")
    if opening <= MAX_JSON_DEPTH:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    structure = unescaped.translate(None, _NOT_STRUCTURE)
    brackets = b"".join(structure.split(b'"')[::2])
    if len(brackets) > MAX_JSON_BRACKETS:
        raise RequestError(
            f"the body has {len(brackets)} JSON brackets, the limit is {MAX_JSON_BRACKETS}",
            code="json_too_large",
        )
    depth = max(accumulate(map(_DEPTH_CHANGE.__getitem__, brackets)), default=0)
    if depth > MAX_JSON_DEPTH:
        raise RequestError(
            f"the body nests {depth} levels deep, the limit is {MAX_JSON_DEPTH}", code="json_too_deep"
        )


def _is_same(value: object, other: object) -> bool:
    """Equality as JSON has it: 1 is 1.0 and not true."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _reason(error: Exception) -> str:
    """Msgspec's message, as the middle of a sentence, without quotes around types."""
    text = str(error)
    if len(text) > MAX_REASON_CHARS:  # it quotes what it did not expect, whole
        text = f"{text[:MAX_REASON_CHARS]}..."
    text = text.replace("`", "").replace(" - at $", " at ")
    return text[:1].lower() + text[1:]


_RAW_LIST: Final[msgspec.json.Decoder[list[msgspec.Raw] | None]] = msgspec.json.Decoder(
    list[msgspec.Raw] | None
)
_ANY: Final = msgspec.json.Decoder(object)
