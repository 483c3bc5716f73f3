"""The release's root keys as files: a mounted Secret instead of environment variables.

A pod whose environment refers to a Secret that is not there yet shows an error, and a kubelet looks again
after ten seconds. One that mounts it is being created, and a kubelet tries again after half a second, then
one, two, four. So a router of a new release waits for the operator, which makes the Secret.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from warmfleet_contracts.names import (
    OPERATOR_TOKEN_VARIABLE,
    ROOT_KEYS_OPERATOR_TOKEN,
    ROOT_KEYS_SALT,
    ROOT_KEYS_WORKER_TOKEN,
    SALT_KEY_VARIABLE,
    WORKER_TOKEN_ROOT_VARIABLE,
)
from warmfleet_router.errors import RootKeysError

VARIABLES: Final[Mapping[str, str]] = {
    ROOT_KEYS_WORKER_TOKEN: WORKER_TOKEN_ROOT_VARIABLE,
    ROOT_KEYS_SALT: SALT_KEY_VARIABLE,
    ROOT_KEYS_OPERATOR_TOKEN: OPERATOR_TOKEN_VARIABLE,
}
"""File to the variable that it stands for."""
MAX_KEY_BYTES: Final = 4096


def read_root_keys(folder: Path) -> dict[str, str]:
    """The contents of `folder`'s files by the variables that they stand for.

    Raises:
        RootKeysError: a file is missing, unreadable, empty, too large or no text; the text names it.
    """
    return {variable: _read(folder / name) for name, variable in VARIABLES.items()}


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_KEY_BYTES + 1)
        if len(content) > MAX_KEY_BYTES:
            raise RootKeysError(f"--root-keys: {file} is larger than {MAX_KEY_BYTES} bytes")
        if not content.strip():
            # Without a key each router would draw its own, and their hashes would not be equal.
            raise RootKeysError(f"--root-keys: {file} is empty")
        return content.decode("ascii")
    except OSError as error:
        raise RootKeysError(f"--root-keys: {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # Not chained: the cause holds the content.
        raise RootKeysError(f"--root-keys: {file} is no ASCII text") from None
