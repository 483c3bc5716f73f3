"""Values that request fields may hold, and their decoders."""

from typing import Annotated, Final

import msgspec

from warmfleet_contracts.names import MAX_MODEL_NAME_CHARS

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_MODEL_NAME_CHARS)]

BOOL: Final = msgspec.json.Decoder(bool)
OPTIONAL_NAME: Final[msgspec.json.Decoder[str | None]] = msgspec.json.Decoder(Name | None)
OPTIONAL_STRING: Final[msgspec.json.Decoder[str | None]] = msgspec.json.Decoder(str | None)
COUNT: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, lt=2**31)])
POSITIVE: Final[msgspec.json.Decoder[int | None]] = msgspec.json.Decoder(
    Annotated[int, msgspec.Meta(ge=1)] | None
)
