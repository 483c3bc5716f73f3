"""JSON of the API server, decoded with one error for everything that cannot be."""

from typing import TypeVar

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_runtime.kubernetes.errors import UnreadableError

T = TypeVar("T")


def decoded(content: bytes | msgspec.Raw, expected: type[T]) -> T:
    """`content` as `expected`.

    Raises:
        UnreadableError: it is no JSON, or not of that type.
    """
    try:
        return msgspec.json.decode(content, type=expected)
    except UNDECODABLE as error:
        raise UnreadableError("sends what cannot be read", message=str(error)) from error
