"""A file is replaced as a whole or not at all."""

import os
import stat
import threading

import pytest

from warmfleet_runtime.files import write_file_atomically


def test_a_file_is_replaced_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_file_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [False, True])
def test_the_umask_does_not_change_the_permissions(tmp_path, durable):
    before = os.umask(0o077)
    try:
        write_file_atomically(tmp_path / "public", b"x", mode=0o644, durable=durable)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write_file_atomically(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError):
        write_file_atomically(tmp_path / "absent" / "state.json", b"new")


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_file_atomically(tmp_path / "folder", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_reader_sees_the_old_content_or_the_new_and_never_a_part(tmp_path):
    path = tmp_path / "list"
    contents = (b"a" * 200_000, b"b" * 300_000)
    write_file_atomically(path, contents[0])
    ended = threading.Event()

    def write():
        for number in range(50):
            write_file_atomically(path, contents[number % 2])
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        assert path.read_bytes() in contents
    writer.join()
