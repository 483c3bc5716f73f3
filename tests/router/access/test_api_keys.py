"""The key file while a router runs: changes come into force, mistakes do not."""

# ruff: noqa: ASYNC110 - what is waited for happens in other tasks

import asyncio
from pathlib import Path

import pytest

from warmfleet_contracts.keys import NewKey, encode_key_file, new_key
from warmfleet_router.access.api_keys import POLL_SECONDS
from warmfleet_router.settings import parse_settings
from warmfleet_testing.router.guarded_router import guarded, json_of, status_of
from warmfleet_testing.router.planted_keys import bearer
from warmfleet_testing.router.router_fixture import RunningRouter


async def until_status(router: RunningRouter, headers: dict[str, str], status: int) -> None:
    async with asyncio.timeout(10):
        while await status_of(router, "GET", "/v1/models", headers) != status:
            await asyncio.sleep(0.02)


def put(path: Path, content: bytes) -> None:
    """At once: a reader sees the old content or the new one, and no half of either."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


async def test_a_changed_file_comes_into_force_however_it_was_changed(stub, keys, tmp_path):
    assert POLL_SECONDS <= 1  # what is changed holds within two
    # given: a Secret as the kubelet mounts it, whose file is a link through `..data`
    mount = tmp_path / "mount"
    first = keys.add("a")
    one_key = encode_key_file(keys.file)
    second = keys.add("a")
    two_keys = encode_key_file(keys.file)
    for revision, content in (("..1", one_key), ("..2", two_keys)):
        (mount / revision).mkdir(parents=True)
        (mount / revision / "keys.json").write_bytes(content)
    (mount / "..data").symlink_to("..1")
    path = mount / "keys.json"
    path.symlink_to("..data/keys.json")
    keys.file = keys.file.without_key(second.id)

    async with guarded(stub, tmp_path, keys, keys_path=path) as router:
        assert await status_of(router, "GET", "/v1/models", bearer(second)) == 401

        (mount / "..new").symlink_to("..2")
        (mount / "..new").replace(mount / "..data")
        await until_status(router, bearer(second), 200)

        (mount / "..2" / "keys.json").write_bytes(one_key)  # in place
        await until_status(router, bearer(second), 401)

        replacement = tmp_path / "replacement"
        replacement.write_bytes(two_keys)
        replacement.replace(path)  # renamed over
        await until_status(router, bearer(second), 200)
        assert await status_of(router, "GET", "/v1/models", bearer(first)) == 200


async def metrics_of(router: RunningRouter, key: NewKey) -> str:
    async with router.http.get(router.url + "/metrics", headers=bearer(key)) as response:
        return await response.text()


async def test_an_unusable_file_leaves_the_last_valid_keys_and_is_reported(stub, keys, tmp_path, caplog):
    admin = keys.add("ops", scopes=["inference", "admin"])
    path = tmp_path / "keys.json"
    path.write_bytes(encode_key_file(keys.file))
    async with guarded(stub, tmp_path, keys, keys_path=path) as router:

        async def problem() -> str:
            _, config = await json_of(router, "/debug/config", bearer(admin))
            return config["keys"]["problem"]

        async def until_problem(text: str) -> None:
            async with asyncio.timeout(10):
                while text not in await problem() or (not text and await problem()):
                    await asyncio.sleep(0.02)

        put(path, b'{"version": 1, "keys": [{"id": 7}]}')
        await until_problem("keys[0].id")
        path.unlink()
        await until_problem("cannot be read")
        assert "key_file_refused 1.0" in await metrics_of(router, admin)
        put(path, encode_key_file(keys.file))
        await until_problem("")
        metrics = await metrics_of(router, admin)
    assert 'key_file_loads_total{result="refused"} 2.0' in metrics
    assert "key_file_refused 0.0" in metrics
    assert "warmfleet_router_keys 1.0" in metrics


async def test_a_request_in_flight_outlives_its_key(stub, keys, tmp_path):
    key = keys.add("a")
    path = tmp_path / "keys.json"
    path.write_bytes(encode_key_file(keys.file))
    stub.events, stub.event_seconds = 20, 0.5
    async with guarded(stub, tmp_path, keys, keys_path=path) as router:
        answering = asyncio.create_task(router.ask("hello", stream=True, headers=bearer(key)))
        while not stub.arrived.is_set():
            await asyncio.sleep(0.01)
        path.write_bytes(encode_key_file(keys.file.without_key(key.id)))
        await until_status(router, bearer(key), 401)
        assert not answering.done()
        stub.event_seconds = 0.0
        status, _, body = await answering
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")


async def test_an_empty_file_admits_no_client(stub, keys, tmp_path):
    async with guarded(stub, tmp_path, keys) as router:
        assert await status_of(router, "GET", "/v1/models") == 401
        assert await status_of(router, "GET", "/v1/models", bearer(new_key())) == 401


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "cannot be read"),
        ("{", "not valid JSON"),
        ('{"version": 1, "keys": [{"id": 7}]}', "keys[0].id"),
    ],
)
def test_a_start_with_an_unusable_file_is_refused_with_the_reason(tmp_path, capsys, content, named):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SystemExit):
        parse_settings(["--keys-file", str(path)], {})

    assert f"--keys-file: {named}" in capsys.readouterr().err


def test_keys_open_the_router_beyond_loopback_and_exclude_the_anonymous(tmp_path, capsys):
    path = tmp_path / "keys.json"
    path.write_text('{"version": 1}')
    keys = ["--keys-file", str(path)]

    assert parse_settings([*keys, "--host", "0.0.0.0"], {}).keys is not None
    with pytest.raises(SystemExit):
        parse_settings([*keys, "--allow-anonymous"], {})
    assert "--allow-anonymous" in capsys.readouterr().err
