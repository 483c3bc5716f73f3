"""The files of a repository that the engine reads. Never code, never pickles.

The names are fixed, so nothing in a listing decides where a file is written: weights are those that the index
names, or `model.safetensors`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_worker.model_store.fetch.errors import RefusedError

WEIGHTS_INDEX: Final = "model.safetensors.index.json"
SINGLE_WEIGHTS: Final = "model.safetensors"
REQUIRED: Final = ("config.json", "tokenizer.json")
OPTIONAL: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    WEIGHTS_INDEX,
)
MAX_SMALL_FILE_BYTES: Final = 128 * 2**20
MAX_WEIGHT_FILES: Final = 2000
MAX_MODEL_BYTES: Final = 8 * 2**40

_WEIGHTS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}\.safetensors")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository as the hub lists it."""

    name: str
    size_bytes: int
    sha256: str = ""
    """In hex; empty = not listed by the hub, as for small files."""
    git_sha1: str = ""
    """In hex, over git's blob header and the content; empty = not listed by the hub."""


def small_files(listing: Mapping[str, HubFile]) -> tuple[HubFile, ...]:
    """Configuration and tokenizer: fetched first, because they may show that the model is not supported.

    Raises:
        RefusedError: a required file is missing, or one is too large.
    """
    for name in REQUIRED:
        if name not in listing:
            raise RefusedError(f"the repository holds no {name}; a model in Hugging Face layout is expected")
    chosen = tuple(listing[name] for name in (*REQUIRED, *OPTIONAL) if name in listing)
    for file in chosen:
        if file.size_bytes > MAX_SMALL_FILE_BYTES:
            raise RefusedError(
                f"{file.name} has {file.size_bytes} bytes, more than {MAX_SMALL_FILE_BYTES}: not fetched"
            )
    return chosen


def weight_files(listing: Mapping[str, HubFile], index: bytes | None) -> tuple[HubFile, ...]:
    """The weights: those that the index names, or the one file without an index.

    Raises:
        RefusedError: there are none in safetensors, or a file of the index is missing.
    """
    names = [SINGLE_WEIGHTS] if index is None else sorted(_indexed(index))
    if len(names) > MAX_WEIGHT_FILES:
        raise RefusedError(f"{WEIGHTS_INDEX} names {len(names)} files, more than {MAX_WEIGHT_FILES}")
    for name in names:
        if name not in listing:
            raise RefusedError(
                f"the repository holds no {name}; only safetensors are read, never .bin, .pt or code"
            )
    chosen = tuple(listing[name] for name in names)
    if sum(file.size_bytes for file in chosen) > MAX_MODEL_BYTES:
        raise RefusedError(f"the weights are larger than {MAX_MODEL_BYTES} bytes: not fetched")
    return chosen


def _indexed(index: bytes) -> set[str]:
    try:
        document: dict[str, Any] = msgspec.json.decode(index, type=dict[str, Any])
        names = set(msgspec.convert(document.get("weight_map"), dict[str, str]).values())
    except UNDECODABLE as error:
        raise RefusedError(f"{WEIGHTS_INDEX} is damaged: {error}") from error
    for name in names:
        if _WEIGHTS.fullmatch(name) is None:
            raise RefusedError(f"{WEIGHTS_INDEX} names {name[:200]!r}, which is no file of weights")
    if not names:
        raise RefusedError(f"{WEIGHTS_INDEX} names no file")
    return names
