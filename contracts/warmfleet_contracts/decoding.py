"""What decoding data from elsewhere can raise: all of it, in one place.

try:
state = msgspec.json.decode(content, type=State)
except UNDECODABLE as error:
raise StateError(str(error)) from error
"""

from typing import Final

import msgspec

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec raises its own errors for wrong JSON, msgpack and types, but UnicodeDecodeError for text that is
not UTF-8 and RecursionError for about a thousand levels: not caught, either would end what reads the data."""
