"""`warmfleet keys`: what it prints once, what it writes, and that two editors lose nothing."""

import datetime as dt
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.key_file import edited_keys
from warmfleet_contracts.keys import KeyRing, parse_key_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def keys(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments, "--keys-file", str(file)])


def made(file: Path, *arguments: str) -> dict[str, object]:
    result = keys(file, "create", *arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    record: dict[str, object] = json.loads(result.stdout)
    return record


def test_a_made_key_is_printed_once_and_has_the_scopes_that_were_given(file):
    record = made(
        file,
        *("--tenant", "acme", "--models", "a,team/b", "--models", "c", "--scopes", "inference,metrics"),
        *("--weight", "2.5", "--max-in-flight-requests", "8", "--max-in-flight-tokens", "9000"),
        *("--priority", "-5", "--sharing-group", "friends", "--expires", "90d"),
    )

    stored = parse_key_file(file.read_bytes())
    entry = KeyRing(stored).entry(str(record["key"]))
    assert entry is not None
    assert (entry.id, entry.tenant, entry.models) == (record["id"], "acme", ("a", "team/b", "c"))
    assert (entry.scopes, entry.best_priority) == (("inference", "metrics"), -5)
    assert entry.expires == entry.created + dt.timedelta(days=90)
    (tenant,) = stored.tenants
    assert (tenant.weight, tenant.max_in_flight_requests, tenant.max_in_flight_tokens) == (2.5, 8, 9000)
    assert tenant.sharing_group == "friends"
    assert str(record["key"]) not in file.read_text() + keys(file, "list").output
    assert str(record["key"]) not in keys(file, "list", "--output", "json").output


def test_the_file_is_its_owners_alone_and_nothing_is_left_beside_it(file):
    before = os.umask(0)
    try:
        made(file, "--tenant", "a")
        made(file, "--tenant", "b")
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_two_editors_at_once_lose_no_key(file):
    command = [sys.executable, "-c", _MAKE_FIVE, str(file)]
    editors = [subprocess.Popen(command) for _ in range(3)]

    assert [editor.wait(60) for editor in editors] == [0, 0, 0]
    assert len(parse_key_file(file.read_bytes()).keys) == 15


_MAKE_FIVE = """
import sys
from typer.testing import CliRunner
from warmfleet_cli.keys import keys_app
for _ in range(5):
    result = CliRunner().invoke(keys_app, ["create", "--tenant", "a", "--keys-file", sys.argv[1]])
    assert result.exit_code == 0, result.output
"""


def test_an_edit_that_fails_changes_nothing(file):
    made(file, "--tenant", "a")
    before = file.read_bytes()

    with pytest.raises(ZeroDivisionError), edited_keys(file) as edit:
        edit.keys = edit.keys.without_key(edit.keys.keys[0].id)
        raise ZeroDivisionError

    assert file.read_bytes() == before


def test_a_link_stays_a_link(file):
    link = file.with_name("link.json")
    link.symlink_to(file)

    made(link, "--tenant", "a")

    assert link.is_symlink()
    assert len(parse_key_file(file.read_bytes()).keys) == 1


def test_a_yaml_file_stays_yaml(tmp_path):
    file = tmp_path / "keys.yaml"
    made(file, "--tenant", "a")
    made(file, "--tenant", "b")

    assert file.read_text().startswith("version: 1\n")
    assert len(parse_key_file(file.read_bytes()).keys) == 2


def test_a_second_key_takes_over_what_its_tenant_has(file):
    made(file, "--tenant", "a", "--weight", "3")
    second = made(file, "--tenant", "a")

    assert second["tenantSettings"]["weight"] == 3  # type: ignore[index]  # JSON
    refused = keys(file, "create", "--tenant", "a", "--weight", "4")
    assert refused.exit_code == 1
    assert "weight is 3.0, not 4.0" in refused.output


@pytest.mark.parametrize("name", ["anonymous", "operator"])
def test_a_name_that_routers_use_themselves_is_no_tenants(file, name):
    refused = keys(file, "create", "--tenant", name)

    assert refused.exit_code == 1
    assert f"{name!r} is a name that routers use themselves" in refused.output
    assert not file.exists()


def test_a_key_is_revoked_by_its_id_and_only_by_that(file):
    first, second = made(file, "--tenant", "a"), made(file, "--tenant", "a")

    whole = keys(file, "revoke", str(first["key"]))
    unknown = keys(file, "revoke", "zzzzzzzzzz")
    assert (whole.exit_code, unknown.exit_code) == (2, 1)
    assert "between the first two hyphens" in whole.output
    assert str(first["id"]) in unknown.output

    assert keys(file, "revoke", str(first["id"])).exit_code == 0
    assert [entry.id for entry in parse_key_file(file.read_bytes()).keys] == [second["id"]]
    assert keys(file.with_name("none.json"), "revoke", "zzzzzzzzzz").exit_code == 1


def test_the_secret_holds_the_hashed_file_and_the_key_goes_to_stderr(file):
    result = keys(file, "create", "--tenant", "a", "--output", "secret", "--namespace", "models")

    manifest = yaml.safe_load(result.stdout)
    assert (manifest["kind"], manifest["metadata"]) == (
        "Secret",
        {"name": "warmfleet-keys", "namespace": "models"},
    )
    stored = parse_key_file(manifest["stringData"]["keys.json"].encode())
    assert stored == parse_key_file(file.read_bytes())
    key = result.stderr.split()[1]
    assert KeyRing(stored).entry(key) is not None
    assert key not in result.stdout
    assert yaml.safe_load(keys(file, "list", "--output", "secret").stdout)["kind"] == "Secret"


def test_a_secret_from_a_file_that_was_not_there_warns_that_it_revokes_all_other_keys(file):
    first = keys(file, "create", "--tenant", "a", "--output", "secret")
    second = keys(file, "create", "--tenant", "a", "--output", "secret")

    assert "did not exist, so the Secret holds this key alone" in first.stderr
    assert "did not exist" not in second.stderr
    assert len(yaml.safe_load(first.stdout)["stringData"]) == 1, "what goes to kubectl is the Secret alone"


@pytest.mark.parametrize(
    ("flags", "exit_code", "words"),
    [
        (["--tenant", "a/b"], 1, "letters, digits"),
        (["--tenant", ""], 1, "letters, digits"),
        (["--tenant", "a", "--models", ""], 2, "--models: is empty"),
        (["--tenant", "a", "--scopes", ","], 2, "--scopes: is empty"),
        (["--tenant", "a", "--scopes", "root"], 2, "allowed: inference, metrics, admin"),
        (["--tenant", "a", "--priority", "-101"], 1, "bestPriority"),
        (["--tenant", "a", "--weight", "0"], 1, "weight"),
        (["--tenant", "a", "--weight", "nan"], 1, "weight"),
        (["--tenant", "a", "--max-in-flight-requests", "0"], 1, "maxInFlightRequests"),
        (["--tenant", "a", "--expires", "soon"], 2, "--expires"),
        (["--tenant", "a", "--expires", "2020-01-01"], 2, "not in the future"),
    ],
)
def test_a_wrong_flag_is_refused_and_writes_nothing(file, flags, exit_code, words):
    result = keys(file, "create", *flags)

    assert result.exit_code == exit_code, result.output
    assert words in result.output
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "{", '{"version": 9}', '{"version": 1, "keys": 3}'])
def test_a_file_that_is_no_key_file_is_left_as_it_is(file, content):
    file.write_text(content)

    for arguments in (("create", "--tenant", "a"), ("list",), ("revoke", "zzzzzzzzzz")):
        result = keys(file, *arguments)
        assert result.exit_code == 1
        assert str(file) in result.output.replace("\n", "")
    assert file.read_text() == content


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    result = keys(tmp_path / "absent" / "keys.json", "create", "--tenant", "a")

    assert result.exit_code == 1
    assert "no such file or directory" in result.output


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keys.md"


def test_the_commands_of_the_page_work_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        line
        for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for line in block.splitlines()
    ]
    ours = [shlex.split(line)[1:] for line in commands if line.startswith("warmfleet keys ")]
    assert commands[0] == "export WARMFLEET_KEYS_FILE=keys.json"
    monkeypatch.setenv("WARMFLEET_KEYS_FILE", "keys.json")

    for arguments in ours:
        stored = parse_key_file(Path("keys.json").read_bytes()) if Path("keys.json").exists() else None
        known = stored.keys[0].id if stored else ""
        result = CliRunner().invoke(app, [known if part == "ID" else part for part in arguments])
        assert result.exit_code == 0, (arguments, result.output)

    assert len(ours) == 8
    assert len(parse_key_file(Path("keys.json").read_bytes()).keys) == 3


def test_the_file_of_the_page_is_one():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert parse_key_file(example.encode()).keys[0].models == ("smollm2-135m-instruct",)
