"""The folder of an engine's sockets: its own, and gone with it, or at the next start where it was killed."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError
from warmfleet_worker.vllm_engine.socket_folder import socket_folder

KILLED_ENGINE = """
import os, signal, socket, sys
from pathlib import Path
from warmfleet_worker.vllm_engine.socket_folder import socket_folder

with socket_folder(Path(sys.argv[1])) as folder:
    socket.socket(socket.AF_UNIX).bind(str(folder / "events"))
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_is_the_users_own_and_gone_afterwards(tmp_path):
    with socket_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "events").touch()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def temporary_folder(monkeypatch):
    """Makes the folder for temporary files one whose path has so many bytes."""
    made = []

    def make(size_bytes):
        folder = Path(f"/tmp/{uuid.uuid4()}{'a' * size_bytes}"[:size_bytes])
        folder.mkdir()
        made.append(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    yield make
    for folder in made:
        shutil.rmtree(folder)


def test_the_sockets_in_a_folder_whose_path_is_short_enough_can_be_made(temporary_folder):
    parent = temporary_folder(70)
    with socket_folder() as folder:
        for path in (folder / "events", folder / "replay", parent / str(uuid.uuid4())):
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_refused_by_name(temporary_folder):
    parent = temporary_folder(71)
    with (
        pytest.raises(UnfitSettingsError, match=rf"\$TMPDIR to one of at most 70 bytes; it is {parent}"),
        socket_folder(),
    ):
        pass


def test_a_killed_engines_folder_is_gone_with_the_next_start(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_ENGINE, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    [left] = tmp_path.iterdir()
    assert killed.stdout.strip() == str(left)
    assert [file.name for file in left.iterdir()] == ["events"]

    with socket_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_live_engines_folder_stays(tmp_path):
    with socket_folder(tmp_path) as first, socket_folder(tmp_path) as second:
        assert set(tmp_path.iterdir()) == {first, second}


def test_a_link_and_other_names_are_left_alone(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tmp_path / "warmfleet-vllm-link").symlink_to(elsewhere)
    (tmp_path / "warmfleet-vllm-file").touch()

    with socket_folder(tmp_path):
        pass

    assert (elsewhere / "file").exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        "elsewhere",
        "warmfleet-vllm-link",
        "warmfleet-vllm-file",
    }


@pytest.mark.needs_root  # only root gives a folder to another user
def test_another_users_folder_is_left_alone(tmp_path):
    theirs = tmp_path / "warmfleet-vllm-theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)

    with socket_folder(tmp_path):
        assert theirs.exists()


def test_engines_that_start_at_once_have_each_their_own(tmp_path):
    def live(_number):
        with socket_folder(tmp_path) as folder:
            (folder / "events").touch(exist_ok=False)
            return folder

    with ThreadPoolExecutor(8) as starts:
        folders = list(starts.map(live, range(200)))

    assert len(set(folders)) == 200
    assert not list(tmp_path.iterdir())
