import hashlib
import json

import pytest

from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model_store.manifest import (
    MANIFEST_NAME,
    describe_model_folder,
    read_manifest,
    verify_model_folder,
    write_manifest,
)

FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": bytes(range(256)) * 8,
    "tokenizer.json": b"{}",
}


@pytest.fixture
def folder(tmp_path):
    """A model folder without a manifest, as a plain download leaves it."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def sealed(folder):
    """The same with its manifest."""
    write_manifest(folder, describe_model_folder(folder, source="test"))
    return folder


def test_a_whole_folder_is_accepted(sealed):
    manifest = verify_model_folder(sealed)

    assert manifest == read_manifest(sealed)
    assert manifest.source == "test"
    assert manifest.total_bytes == sum(len(content) for content in FILES.values())


def test_the_model_digest_is_over_the_sorted_digests_of_the_files(sealed):
    digests = sorted(hashlib.sha256(content).digest() for content in FILES.values())

    assert verify_model_folder(sealed).model_digest == hashlib.sha256(b"".join(digests)).hexdigest()


def test_a_folder_without_a_manifest_gets_one_computed_and_not_written(folder):
    described = verify_model_folder(folder)

    assert described == describe_model_folder(folder)
    assert not (folder / MANIFEST_NAME).exists()


def test_pickles_and_code_do_not_belong_to_a_model(folder):
    before = describe_model_folder(folder)
    for name in ("pytorch_model.bin", "modeling_tiny.py", "model.pt", ".hidden.json"):
        (folder / name).write_bytes(b"x")

    assert describe_model_folder(folder) == before


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused_by_name(sealed, name):
    (sealed / name).write_bytes(FILES[name][:-1])

    with pytest.raises(ModelError, match=rf"^{name} has \d+ bytes, expected {len(FILES[name])}"):
        verify_model_folder(sealed)


@pytest.mark.parametrize("name", FILES)
def test_a_tampered_file_is_refused_by_name(sealed, name):
    content = FILES[name]
    (sealed / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])

    with pytest.raises(ModelError, match=f"^{name} does not have the SHA-256"):
        verify_model_folder(sealed)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused_by_name(sealed, name):
    (sealed / name).unlink()

    with pytest.raises(ModelError, match=f"^{name} is missing"):
        verify_model_folder(sealed)


def test_a_file_that_was_added_is_refused_by_name(sealed):
    (sealed / "model-00002.safetensors").write_bytes(b"")

    with pytest.raises(ModelError, match=r"model-00002\.safetensors is in the model folder but not in"):
        verify_model_folder(sealed)


def damage_version(manifest):
    manifest["version"] = 2


def damage_digest(manifest):
    manifest["model_digest"] = "0" * 64


def damage_file_digest(manifest):
    manifest["files"]["config.json"]["sha256"] = "not hex"


def damage_file_name(manifest):
    manifest["files"]["../escape.json"] = manifest["files"].pop("config.json")


@pytest.mark.parametrize("damage", [damage_version, damage_digest, damage_file_digest, damage_file_name])
def test_a_damaged_manifest_is_refused(sealed, damage):
    manifest = json.loads((sealed / MANIFEST_NAME).read_text())
    damage(manifest)
    (sealed / MANIFEST_NAME).write_text(json.dumps(manifest))

    with pytest.raises(ModelError, match=MANIFEST_NAME):
        verify_model_folder(sealed)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{", b"null"])
def test_a_manifest_that_is_not_one_is_refused(sealed, content):
    (sealed / MANIFEST_NAME).write_bytes(content)

    with pytest.raises(ModelError, match=f"{MANIFEST_NAME} is damaged"):
        verify_model_folder(sealed)


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        verify_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        verify_model_folder(tmp_path)
    with pytest.raises(ModelError, match="there is no model folder named 'nowhere'"):
        verify_model_folder(tmp_path / "nowhere")
