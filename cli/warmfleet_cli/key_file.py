"""Reading and editing the file of API keys: atomically, with mode 0600, under a lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warmfleet_cli.errors import CliError
from warmfleet_contracts.errors import KeyFileError
from warmfleet_contracts.keys import MAX_KEY_FILE_BYTES, KeyFile, encode_key_file, parse_key_file
from warmfleet_runtime.files import write_file_atomically


class KeyFileEdit:
    """What `edited_keys` yields: assign `keys` to change the file."""

    def __init__(self, keys: KeyFile) -> None:
        self.keys = keys


def load_keys(path: Path) -> KeyFile:
    """The keys in an existing file.

    Raises:
        CliError: it cannot be read.
        KeyFileError: it is not a key file; the text begins with its path.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise _failed(path, "read", error) from error
    try:
        return parse_key_file(content)
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None


@contextmanager
def edited_keys(path: Path) -> Iterator[KeyFileEdit]:
    """Lock the file at `path`, and write the changed keys when the block ends without an error.

        with edited_keys(path) as edit:
            edit.keys = edit.keys.without_key(key_id)

    A missing file counts as empty.

    Readers see the old file or the new one, never a part. The folder is locked, because the file is replaced.

    Raises:
        CliError: the file or its folder cannot be read or written.
        KeyFileError: the file is not a key file, or the new content is too large.
    """
    path = path.resolve()  # a link stays a link
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _failed(path, "written", error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        edit = KeyFileEdit(load_keys(path) if path.exists() else KeyFile())
        before = edit.keys
        yield edit
        if edit.keys != before:
            content = encode_key_file(edit.keys, as_yaml=path.suffix in {".yaml", ".yml"})
            parse_key_file(content)  # what a router could not read is not written
            try:
                write_file_atomically(path, content, durable=True)
            except OSError as error:
                raise _failed(path, "written", error) from error
    finally:
        os.close(folder)


def _failed(path: Path, verb: str, error: OSError) -> CliError:
    return CliError(f"{path} cannot be {verb}: {(error.strerror or str(error)).lower()}")
