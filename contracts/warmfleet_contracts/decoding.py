"""What decoding data from elsewhere can raise: all of it, in one place.

    try:
        state = msgspec.json.decode(content, type=State)
    except UNDECODABLE as error:
        raise StateError(str(error)) from error

Messages of other processes all end in the same error: `decoded` raises it.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from warmfleet_contracts.errors import ContractError

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec raises its own errors for wrong JSON, msgpack and types, but UnicodeDecodeError for text that is
not UTF-8 and RecursionError for about a thousand levels: not caught, either would end what reads the data."""


def decoded(decode: Callable[[bytes], T], body: bytes, what: str) -> T:
    """What `decode` makes of a message from another process; the error names `what` it should have been.

    Raises:
        ContractError: malformed.
    """
    try:
        return decode(body)
    except UNDECODABLE as error:
        raise ContractError(f"malformed {what}: {error}") from error
