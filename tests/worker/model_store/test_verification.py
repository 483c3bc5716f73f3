"""A start reads no weights whose digests are known; their content is verified in the background."""

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest

from warmfleet_contracts.errors import ModelError
from warmfleet_testing.engine.worker_process import running_worker
from warmfleet_worker.model_store import manifest as manifests
from warmfleet_worker.model_store.known_model import known_model
from warmfleet_worker.model_store.manifest import describe_model_folder, write_manifest
from warmfleet_worker.model_store.verification import (
    BackgroundVerification,
    recorded_manifest,
    verify_and_record,
)

FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": bytes(range(256)) * 8,
    "tokenizer.json": b"{}",
}


@pytest.fixture
def folder(tmp_path):
    """A plain download of yesterday."""
    path = tmp_path / "model"
    path.mkdir()
    for name, content in FILES.items():
        (path / name).write_bytes(content)
        make_older(path / name)
    return path


@pytest.fixture
def sealed(folder):
    """The same with its manifest."""
    write_manifest(folder, describe_model_folder(folder, source="test"))
    return folder


@pytest.fixture
def records(tmp_path):
    return tmp_path / "records"


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose content was read."""
    names = []
    digest_file = manifests._digest_file

    def counted(path):
        names.append(path.name)
        return digest_file(path)

    monkeypatch.setattr(manifests, "_digest_file", counted)
    return names


def make_older(path, seconds=86_400):
    changed = time.time() - seconds
    os.utime(path, (changed, changed))


def tamper_in_silence(path):
    """Change the content and keep size and modification time, as a failing disk does."""
    state = path.stat()
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes([content[0] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_folder_with_a_manifest_starts_without_reading_its_files(sealed, records, hashed):
    manifest = recorded_manifest(sealed, records)

    assert manifest == manifests.read_manifest(sealed)
    assert hashed == []


def test_a_plain_folder_is_hashed_by_its_first_start_only(folder, records, hashed):
    assert recorded_manifest(folder, records) is None
    first = verify_and_record(folder, records)
    assert sorted(hashed) == sorted(FILES)
    hashed.clear()

    assert recorded_manifest(folder, records) == first
    assert hashed == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_changed_since_is_verified_before_the_start(sealed, records, name):
    (sealed / name).write_bytes(bytes([FILES[name][0] ^ 1]) + FILES[name][1:])
    make_older(sealed / name, seconds=-1)

    assert recorded_manifest(sealed, records) is None
    with pytest.raises(ModelError, match=f"^{name} does not have the SHA-256"):
        verify_and_record(sealed, records)


def test_a_plain_folder_that_changed_since_is_hashed_again(folder, records):
    first = verify_and_record(folder, records)
    weights = folder / "model.safetensors"
    weights.write_bytes(FILES["model.safetensors"][::-1])
    make_older(weights, seconds=3600)

    assert recorded_manifest(folder, records) is None
    assert verify_and_record(folder, records).model_digest != first.model_digest


def test_a_file_that_changed_a_moment_ago_is_not_recorded(folder, records):
    (folder / "tokenizer.json").write_bytes(b"{ }")

    verify_and_record(folder, records)

    assert recorded_manifest(folder, records) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_record_is_ignored(folder, records, content):
    verify_and_record(folder, records)
    (record,) = records.iterdir()
    record.write_bytes(content)

    assert recorded_manifest(folder, records) is None


def test_a_home_that_cannot_be_written_costs_only_time(folder, tmp_path):
    (tmp_path / "file").write_bytes(b"")

    assert verify_and_record(folder, tmp_path / "file" / "records") == describe_model_folder(folder)


@pytest.mark.parametrize("plain", [False, True])
def test_damage_in_silence_is_found_in_the_background(request, records, plain):
    folder = request.getfixturevalue("folder" if plain else "sealed")
    if plain:
        verify_and_record(folder, records)
    tamper_in_silence(folder / "model.safetensors")
    manifest = recorded_manifest(folder, records)
    assert manifest is not None

    verification = BackgroundVerification(folder, manifest, records)
    verification.verify()

    with pytest.raises(ModelError, match=r"^model\.safetensors "):
        verification.raise_failure()
    assert recorded_manifest(folder, records) is None, "the next start verifies first"


def test_a_whole_folder_passes_in_the_background(sealed, records):
    verification = BackgroundVerification(sealed, recorded_manifest(sealed, records), records)
    verification.verify()

    verification.raise_failure()


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "Stale file handle"), RuntimeError("unexpected")])
def test_a_verification_that_cannot_be_completed_is_a_failure(sealed, records, monkeypatch, error):
    verification = BackgroundVerification(sealed, recorded_manifest(sealed, records), records)

    def failing(_):
        raise error

    monkeypatch.setattr(manifests, "_digest_file", failing)
    verification.verify()

    with pytest.raises(ModelError, match=r"^the model folder 'model' cannot be verified: "):
        verification.raise_failure()
    assert recorded_manifest(sealed, records) is None, "the next start verifies first"


@pytest.mark.parametrize("query", ["is_dir", "is_file"])
def test_a_folder_whose_state_cannot_be_read_raises_a_model_error(sealed, monkeypatch, query):
    def stale(_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, query, stale)

    with pytest.raises(ModelError, match="cannot be read: Stale file handle"):
        manifests.verify_model_folder(sealed)


def test_a_thread_that_keeps_its_priority_verifies_too(sealed, records, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refused)
    tamper_in_silence(sealed / "model.safetensors")
    verification = BackgroundVerification(sealed, recorded_manifest(sealed, records), records)
    verification.start()
    for thread in threading.enumerate():
        if thread.name == "verify-model":
            thread.join(10)

    with pytest.raises(ModelError, match=r"^model\.safetensors "):
        verification.raise_failure()


def test_a_home_that_cannot_record_damage_is_verified_before_the_start(sealed, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    tamper_in_silence(sealed / "model.safetensors")

    with pytest.raises(ModelError, match=r"^model\.safetensors does not have the SHA-256"):
        known_model(sealed, tmp_path / "file" / "records")


def test_a_model_that_was_verified_before_the_start_is_not_verified_again(folder, records, hashed):
    manifest, verification = known_model(folder, records)

    assert verification is None
    assert sorted(hashed) == sorted(manifest.files)


def test_a_home_that_can_record_damage_starts_at_once_and_stays_empty(sealed, records, hashed):
    _, verification = known_model(sealed, records)

    assert verification is not None, "its content is still to be verified"
    assert hashed == []
    assert list(records.iterdir()) == []


def test_an_engine_with_damaged_weights_starts_and_then_ends_by_their_name(tiny_served_path, tmp_path):
    # given weights that changed in silence since their manifest was written
    for file in tiny_served_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
        make_older(tmp_path / file.name)
    write_manifest(tmp_path, describe_model_folder(tmp_path))
    weights = tmp_path / "model.safetensors"
    state = weights.stat()
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))

    with running_worker(tmp_path, "--kv-cache-bytes", "1000000", wait=False) as worker:
        assert worker.process.wait(60) == 1
        assert worker.wait_for_log("engine ready")
        line = worker.wait_for_log("the engine ended, so does this worker")
        assert "model.safetensors does not have the SHA-256" in line["reason"], json.dumps(line)
