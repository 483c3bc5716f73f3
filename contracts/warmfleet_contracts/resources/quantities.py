"""Kubernetes quantities: of memory (`512Mi`, `2G`, `1e9`) as whole bytes, of CPU (`1500m`) as cores."""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer

_SUFFIXES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY: Final = re.compile(
    r"(?P<number>\d{1,19}(\.\d{0,9})?|\.\d{1,9})(?P<suffix>[kMGTPE]|[KMGTPE]i|[eE][+]?\d{1,2})?",
    re.ASCII,
)
_CORES: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{0,9})?|\.\d{1,9})(?P<milli>m?)", re.ASCII)
_MAX_BYTES: Final = 2**63 - 1


def parse_bytes(quantity: object) -> int:
    """Whole bytes of a quantity as the API server reads it.

    Raises:
        ValueError: not a quantity of bytes, a fraction of a byte, or beyond 64 bits.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, (int, str)):
        raise ValueError("must be a quantity such as 512Mi")  # noqa: TRY004 - pydantic reports ValueError
    text = str(quantity)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:40]!r} is not a quantity of bytes; write a number and Ki, Mi or Gi, such as 512Mi"
        )
    suffix = match["suffix"] or ""
    scale = _SUFFIXES.get(suffix)
    if scale is None:
        scale = 10 ** int(suffix[1:])
    size = Decimal(match["number"]) * scale
    if size > _MAX_BYTES:
        raise ValueError(f"{text!r} is more bytes than 64 bits can count")
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def format_bytes(size_bytes: int) -> str:
    """The shortest exact quantity with a binary suffix: 536870912 is `512Mi`, 1000 is `1000`."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if size_bytes and size_bytes % _SUFFIXES[suffix] == 0:
            return f"{size_bytes // _SUFFIXES[suffix]}{suffix}"
    return str(size_bytes)


Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str)]
"""A field that is a quantity in the manifest and an int of bytes in the program."""


def parse_cores(quantity: object) -> Decimal:
    """CPU cores of a quantity as the API server reads it: `1500m` and `1.5` are 1.5.

    Raises:
        ValueError: not a quantity of cores.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, (int, float, str)):
        raise ValueError("must be a quantity such as 1500m")  # noqa: TRY004 - pydantic reports ValueError
    match = _CORES.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{str(quantity)[:40]!r} is not a quantity of cores, such as 2 or 1500m")
    return Decimal(match["number"]) / (1000 if match["milli"] else 1)
