"""JSON of the API server, decoded with one error for everything that cannot be."""

from typing import Final, TypeVar

import msgspec

from warmfleet_runtime.kubernetes.errors import UnreadableError

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises: for wrong JSON and types, text that is not UTF-8, and about 1000 levels or more."""


def decoded(content: bytes | msgspec.Raw, expected: type[T]) -> T:
    """`content` as `expected`.

    Raises:
        UnreadableError: it is no JSON, or not of that type.
    """
    try:
        return msgspec.json.decode(content, type=expected)
    except UNDECODABLE as error:
        raise UnreadableError("sends what cannot be read", message=str(error)) from error
