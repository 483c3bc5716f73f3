"""Data from elsewhere that no decoder can read ends in the error of its reader, never in a bare one.

The three ways in which msgspec gives up: wrong data, text that is not UTF-8, nesting beyond its stack.
"""

from pathlib import Path

import msgspec
import pytest

from warmfleet_cli.router_client import error_text
from warmfleet_contracts.cache.kv_events import decode_message
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ContractError, ModelError
from warmfleet_contracts.keys import KeyFileError, parse_key_file
from warmfleet_router.discovery.snapshot_file import SnapshotFile
from warmfleet_worker.engine.messages import decode_engine_message, decode_server_message
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.model_store.manifest import MANIFEST_NAME, read_manifest

JSON = [b"{", b'{"a": "\xfc"}', b'{"a":' * 3000 + b"1" + b"}" * 3000]
MSGPACK = [b"\xc1", b"\xa1\xff", b"\x91" * 3000]
IDS = ["damaged", "not UTF-8", "nested"]


@pytest.mark.parametrize("content", JSON, ids=IDS)
def test_json_that_cannot_be_decoded_raises_one_of_three_errors(content: bytes) -> None:
    with pytest.raises(UNDECODABLE):
        msgspec.json.decode(content)


@pytest.mark.parametrize("body", MSGPACK, ids=IDS)
@pytest.mark.parametrize("decode", [decode_message, decode_server_message, decode_engine_message])
def test_a_message_that_cannot_be_decoded_is_a_contract_error(decode, body: bytes) -> None:
    with pytest.raises(ContractError):
        decode(body)


@pytest.mark.parametrize("content", JSON, ids=IDS)
def test_a_key_file_that_cannot_be_decoded_is_refused(content: bytes) -> None:
    with pytest.raises(KeyFileError):
        parse_key_file(content)


@pytest.mark.parametrize("content", JSON, ids=IDS)
def test_a_snapshot_of_the_cluster_that_cannot_be_decoded_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(content)

    assert SnapshotFile(path).read(()) is None


@pytest.mark.parametrize("content", JSON, ids=IDS)
def test_files_of_a_model_that_cannot_be_decoded_are_damaged(content: bytes, tmp_path: Path) -> None:
    for name in (MANIFEST_NAME, "tokenizer_config.json", "config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(content)

    with pytest.raises(ModelError):
        read_manifest(tmp_path)
    with pytest.raises(ModelError):
        load_prompt_assets(tmp_path)


@pytest.mark.parametrize("content", JSON, ids=IDS)
def test_an_answer_that_cannot_be_decoded_has_no_error_text(content: bytes) -> None:
    assert error_text(content) == ""
