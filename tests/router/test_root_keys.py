"""A release's root keys from the files of a mounted Secret."""

import pytest

from warmfleet_router.errors import RootKeysError
from warmfleet_router.root_keys import MAX_KEY_BYTES, read_root_keys
from warmfleet_router.settings import parse_settings

KEYS = {"worker-token-root": "1a" * 32, "salt-key": "2b" * 32, "operator-token": "3c" * 32}


@pytest.fixture
def folder(tmp_path):
    for name, text in KEYS.items():
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


def test_files_stand_for_the_variables_also_where_those_are_set(folder):
    environment = {"WARMFLEET_SALT_KEY": "ff" * 32, "WARMFLEET_POD_NAMESPACE": "models"}
    settings = parse_settings(["--discovery", "kubernetes", "--root-keys", str(folder)], environment)
    assert settings.salt_key == bytes.fromhex(KEYS["salt-key"])
    assert not settings.salt_key_is_own
    assert settings.cluster.token_root == bytes.fromhex(KEYS["worker-token-root"])
    assert settings.operator_token == KEYS["operator-token"].encode()


@pytest.mark.parametrize("name", KEYS)
def test_a_missing_file_is_named(folder, name, capsys):
    (folder / name).unlink()
    with pytest.raises(SystemExit):
        parse_settings(["--root-keys", str(folder)], {})
    assert f"--root-keys: {folder / name} cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"\xffplanted", b"planted" * MAX_KEY_BYTES, b"\n"])
def test_what_is_no_key_is_refused_and_not_shown(folder, content):
    (folder / "salt-key").write_bytes(content)
    with pytest.raises(RootKeysError, match="salt-key") as refused:
        read_root_keys(folder)
    assert "planted" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_key_that_is_too_short_is_refused_by_its_variable(folder, capsys):
    (folder / "salt-key").write_text("0f")
    with pytest.raises(SystemExit):
        parse_settings(["--root-keys", str(folder)], {})
    assert "$WARMFLEET_SALT_KEY: expected at least" in capsys.readouterr().err
