"""API keys and their file: what is kept, what is refused, and that editing loses nothing."""

import datetime as dt
import hashlib
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.errors import KeyFileError
from warmfleet_contracts.keys import (
    MAX_KEY_FILE_BYTES,
    MAX_KEYS,
    KeyEntry,
    KeyFile,
    KeyRing,
    TenantEntry,
    digest_of_key,
    encode_key_file,
    is_expired,
    new_key,
    parse_key_file,
)
from warmfleet_testing.router.planted_keys import LONG_AGO, PlantedKeys

GOOD_KEY = {"id": "abcdefghij", "tenant": "a", "sha256": "0" * 64, "created": "2026-01-01T00:00:00Z"}
GOOD_FILE = {"version": 1, "tenants": [{"name": "a"}], "keys": [GOOD_KEY]}


def entry_of(key_id: str, tenant: str, **fields) -> KeyEntry:
    return KeyEntry(id=key_id, tenant=tenant, sha256="0" * 64, created=LONG_AGO, **fields)


def test_a_key_has_a_prefix_its_public_id_and_256_random_bits():
    key = new_key()

    match = re.fullmatch(r"wf-([a-z0-9]{10})-([0-9a-f]{64})", key.text)
    assert match
    assert match[1] == key.id
    assert key.text not in repr(key)


def test_only_the_whole_key_finds_its_entry():
    keys = PlantedKeys()
    mine, other = keys.add("a"), keys.add("b")
    ring = KeyRing(keys.file)

    assert ring.entry(mine.text) == keys.file.keys[0]
    assert ring.entry(other.text) == keys.file.keys[1]
    secret = mine.text.rpartition("-")[2]
    for wrong in (
        "",
        mine.id,
        mine.text[:-1],
        mine.text + "0",
        mine.text + "\n",
        mine.text.upper(),
        secret,
        f"wf-{other.id}-{secret}",  # another's id before this secret
        f"wf-{'z' * 10}-{secret}",
        keys.file.keys[0].sha256,
        "é" * 70,
        "\ud800",
        "x" * 100_000,
    ):
        assert ring.entry(wrong) is None, wrong


def test_the_file_holds_the_hash_and_nothing_of_the_secret():
    keys = PlantedKeys()
    key = keys.add("a")

    content = encode_key_file(keys.file).decode()

    assert hashlib.sha256(key.text.encode()).hexdigest() in content
    assert key.text.rpartition("-")[2] not in content


names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
moments = st.datetimes(timezones=st.just(dt.UTC))
tenants = st.builds(
    TenantEntry,
    name=names,
    sharing_group=st.none() | names,
    weight=st.floats(0.01, 1000),
    max_in_flight_requests=st.none() | st.integers(1, 1000),
    max_in_flight_tokens=st.none() | st.integers(1, 1000),
)


@given(
    tenant=tenants,
    models=st.none() | st.lists(st.text(min_size=1, max_size=20), max_size=3).map(tuple),
    expires=st.none() | moments,
    created=moments,
    best_priority=st.integers(-100, 100),
    as_yaml=st.booleans(),
)
def test_what_is_written_is_read_back(tenant, models, expires, created, best_priority, as_yaml):
    entry = KeyEntry(
        id="abcdefghij",
        tenant=tenant.name,
        sha256=digest_of_key("x"),
        models=models,
        scopes=("admin", "metrics"),
        best_priority=best_priority,
        created=created,
        expires=expires,
    )
    file = KeyFile().with_key(entry, tenant)

    assert parse_key_file(encode_key_file(file, as_yaml=as_yaml)) == file


def changed(**fields) -> dict[str, object]:
    return {**GOOD_FILE, "keys": [{**GOOD_KEY, **fields}]}


def test_the_file_that_the_refusals_below_are_made_of_is_valid():
    assert len(parse_key_file(msgspec.json.encode(GOOD_FILE)).keys) == 1


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "expected an object"),
        ({}, "version"),
        ({**GOOD_FILE, "version": 2}, "version"),
        ({**GOOD_FILE, "version": True}, "version"),
        ({**GOOD_FILE, "kys": []}, "kys"),
        ({**GOOD_FILE, "keys": {}}, "keys"),
        (changed(id="Short"), "keys[0].id"),
        (changed(sha256="00"), "keys[0].sha256"),
        (changed(sha256="0" * 64 + "\n"), "keys[0].sha256"),
        (changed(secret="wf-abcdefghij-planted"), "secret"),
        (changed(scopes=[]), "keys[0].scopes"),
        (changed(scopes=["root"]), "keys[0].scopes[0]"),
        (changed(models="all"), "keys[0].models"),
        (changed(models=[""]), "keys[0].models[0]"),
        (changed(bestPriority=101), "keys[0].bestPriority"),
        (changed(created="yesterday"), "keys[0].created"),
        (changed(created="2026-01-01T00:00:00"), "keys[0].created"),
        (changed(expires="2026-01-01T00:00:00"), "keys[0].expires"),
        (changed(tenant="b"), "keys[0].tenant"),
        (changed(tenant="a/b"), "keys[0].tenant"),
        ({**GOOD_FILE, "keys": [GOOD_KEY, GOOD_KEY]}, "keys[1].id"),
        ({**GOOD_FILE, "tenants": [{"name": "a"}, {"name": "a", "weight": 2}]}, "tenants[1].name"),
        ({**GOOD_FILE, "tenants": [{"name": "a"}, {"name": "anonymous"}]}, "tenants[1].name: 'anonymous' is"),
        ({**GOOD_FILE, "tenants": [{"name": "operator"}, {"name": "a"}]}, "tenants[0].name: 'operator' is"),
        ({**GOOD_FILE, "tenants": [{"name": "a", "weight": 0}]}, "tenants[0].weight"),
        ({**GOOD_FILE, "tenants": [{"name": "a", "sharingGroup": ""}]}, "tenants[0].sharingGroup"),
        (
            {**GOOD_FILE, "tenants": [{"name": "a", "maxInFlightRequests": 0}]},
            "tenants[0].maxInFlightRequests",
        ),
        ({**GOOD_FILE, "keys": [GOOD_KEY] * (MAX_KEYS + 1)}, "keys"),
    ],
)
def test_a_wrong_field_is_refused_by_name_and_nothing_secret_is_repeated(document, named):
    with pytest.raises(KeyFileError) as refused:
        parse_key_file(msgspec.json.encode(document))

    assert named in str(refused.value)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"version":1}garbage',
        b"a: [",
        b"\xff\xfe",
        b"wf-abcdefghij-planted",
        b"planted: wf: x",
        b"[" * 100_000,
        b"{" + b'"a":{' * 100_000,
        b"!!python/object/apply:os.system [planted]",
        b" " * (MAX_KEY_FILE_BYTES + 1),
    ],
)
def test_what_is_no_key_file_is_refused(content):
    with pytest.raises(KeyFileError) as refused:
        parse_key_file(content)

    assert "planted" not in str(refused.value)


@pytest.mark.parametrize("weight", [".nan", ".inf", "-.inf", "0", "1e9"])
def test_a_weight_is_a_number_that_shares_can_be_made_of(weight):
    with pytest.raises(KeyFileError, match="weight"):
        parse_key_file(f"version: 1\ntenants: [{{name: a, weight: {weight}}}]".encode())


def test_a_tenant_keeps_its_limits_whichever_key_is_added():
    file = KeyFile().with_key(entry_of("aaaaaaaaaa", "acme"), TenantEntry(name="acme", weight=2.0))

    again = file.with_key(entry_of("bbbbbbbbbb", "acme"), TenantEntry(name="acme", weight=2.0))

    assert len(again.tenants) == 1
    with pytest.raises(
        KeyFileError, match=r"'acme'.*weight is 2.0, not 3.0; maxInFlightTokens is not set, not 5"
    ):
        file.with_key(
            entry_of("cccccccccc", "acme"), TenantEntry(name="acme", weight=3.0, max_in_flight_tokens=5)
        )


def test_a_key_that_is_not_there_cannot_be_taken_out():
    file = KeyFile().with_key(entry_of("aaaaaaaaaa", "acme"), TenantEntry(name="acme"))

    with pytest.raises(KeyFileError, match=r"'zzzzzzzzzz'; ids in the file: aaaaaaaaaa"):
        file.without_key("zzzzzzzzzz")
    assert file.without_key("aaaaaaaaaa").keys == ()


def test_a_key_ends_at_its_moment():
    ending = entry_of("aaaaaaaaaa", "acme", expires=dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    end = dt.datetime(2030, 1, 1, tzinfo=dt.UTC).timestamp()

    assert not is_expired(ending, end - 0.001)
    assert is_expired(ending, end)
    assert not is_expired(entry_of("aaaaaaaaaa", "acme"), end * 100)
