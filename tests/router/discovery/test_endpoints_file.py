"""A file of endpoints is followed; one that cannot be used changes nothing."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.discovery.endpoints_file import MAX_FILE_BYTES, EndpointsFile, read_endpoints
from warmfleet_router.errors import DiscoveryError
from warmfleet_router.settings import parse_settings
from warmfleet_runtime.files import write_file_atomically
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

ONE = '[{"uid": "b", "name": "pod-b", "url": "http://127.0.0.1:2", "token": "t", "more": 1}]'
TWO = ONE[:-1] + ', {"uid": "c", "url": "http://127.0.0.1:3"}]'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "endpoints.json"
    write(file, ONE)
    return file


def write(path: Path, content: str) -> None:
    """As `warmfleet up` does: no reader sees half of it."""
    write_file_atomically(path, content.encode())


def uids(listed: tuple[Endpoint, ...]) -> list[str]:
    return [endpoint.uid for endpoint in listed]


def test_an_entry_has_identity_address_and_token(path: Path) -> None:
    assert read_endpoints(path) == [Endpoint(uid="b", name="pod-b", url="http://127.0.0.1:2", token=b"t")]


async def test_each_change_of_the_file_is_a_new_list_beside_the_fixed_endpoints(path: Path) -> None:
    fixed = Endpoint(uid="a", name="a", url="http://127.0.0.1:1")
    file = EndpointsFile(path, [fixed], poll_seconds=0.001)

    async with aclosing(file.watch()) as lists:
        seen = [uids((await anext(lists)).endpoints)]
        for content in (TWO, "[]", ONE):
            write(path, content)
            seen.append(uids((await anext(lists)).endpoints))

    assert seen == [["a", "b"], ["a", "b", "c"], ["a"], ["a", "b"]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[{", "truncated"),
        ('[{"uid": "a", "url": "ftp://x"}]', "not an http"),
        ('{"names": ["m"]}', "endpoints"),
        ('{"endpoints": [], "names": ["m"], "hold_seconds": {"m": -1}}', ">= 0"),
        ('{"endpoints": [], "names": ["m"], "hold_seconds": {"n": 1}}', "'n' is none of the names"),
        ('[{"uid": "a", "url": "http://x"}, {"uid": "a", "url": "http://y"}]', "two endpoints"),
        (" " * (MAX_FILE_BYTES + 1), "larger than"),
        (None, "cannot be read"),
    ],
    ids=["truncated", "address", "no-list", "hold", "unknown-name", "twice", "large", "missing"],
)
async def test_a_file_that_cannot_be_used_leaves_the_last_list_until_it_can(
    path: Path, content: str | None, problem: str
) -> None:
    file = EndpointsFile(path, poll_seconds=0.001)

    async with aclosing(file.watch()) as lists:
        await anext(lists)
        if content is None:
            path.unlink()  # noqa: ASYNC240
        else:
            write(path, content)
        following = asyncio.ensure_future(anext(lists))
        while not file.state.problem:  # noqa: ASYNC110 - no event: it is what people read
            await asyncio.sleep(0.001)
        refused = file.state
        assert not following.done()
        write(path, TWO)
        after = await following

    assert problem in refused.problem
    assert (refused.is_known, refused.errors) == (True, 1)
    assert uids(after.endpoints) == ["b", "c"]
    assert file.state.problem == ""


def test_a_router_does_not_start_with_a_file_that_it_cannot_use(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = parse_settings(["--endpoint", "a=http://127.0.0.1:1", "--endpoints-file", str(path)], {})
    for flags in (
        ["--endpoints-file", str(path) + "x"],
        ["--endpoint", "b=http://x", "--endpoints-file", str(path)],
    ):
        with pytest.raises(SystemExit):
            parse_settings(flags, {})

    assert (uids(settings.endpoints), settings.endpoints_path) == (["a"], path)
    errors = capsys.readouterr().err
    assert "--endpoints-file: cannot be read: No such file" in errors
    assert "--endpoints-file: two endpoints have the uid 'b'" in errors
    with pytest.raises(DiscoveryError, match="cannot be read"):
        read_endpoints(path.with_name("missing"))


async def test_models_without_a_worker_are_known_and_held_as_the_file_names_them(path: Path) -> None:
    file = EndpointsFile(path, poll_seconds=0.001)

    async with aclosing(file.watch()) as lists:
        before = await anext(lists)
        write(path, f'{{"endpoints": {ONE}, "names": ["m", "n"], "hold_seconds": {{"m": 300}}}}')
        named = await anext(lists)
        write(path, '{"endpoints": []}')
        after = await anext(lists)

    assert (before.names, before.hold_seconds) == (None, {})
    assert (uids(named.endpoints), named.names, named.hold_seconds) == (
        ["b"],
        frozenset({"m", "n"}),
        {"m": 300.0},
    )
    assert (after.endpoints, after.names) == ((), None)


async def test_a_request_for_a_model_without_a_worker_is_held_until_the_file_lists_one(
    path: Path, tmp_path: Path
) -> None:
    with running_stub(StubWorker("late", served_name="m")) as late:
        named = '"names": ["m"], "hold_seconds": {"m": 60}'
        write(path, f'{{"endpoints": [], {named}}}')
        file = EndpointsFile(path, poll_seconds=0.01)
        async with running_router([], tmp_path, discovery=file, wait_ready=False) as router:
            await router.until(router.router.workers.fleet.models)
            asking = asyncio.create_task(router.ask("hello", model="m"))
            await router.until(lambda: router.router.admission.waking.total.requests)
            listed, ready = await router.get("/v1/models"), await router.get("/readyz")
            write(path, f'{{"endpoints": [{{"uid": "late", "url": "{late.url}"}}], {named}}}')
            status, _, _ = await asking

    assert (status, ready[0]) == (200, 200)
    assert [model["id"] for model in listed[1]["data"]] == ["m"]  # type: ignore[attr-defined]


async def test_a_worker_gets_requests_as_long_as_the_file_lists_it(path: Path, tmp_path: Path) -> None:
    with (
        running_stub(StubWorker("old", served_name="m")) as old,
        running_stub(StubWorker("new", served_name="m")) as new,
    ):
        entry = '{{"uid": "{0.uid}", "url": "{0.url}"}}'.format
        write(path, f"[{entry(old)}]")
        file = EndpointsFile(path, poll_seconds=0.01)
        async with running_router([], tmp_path, discovery=file) as router:
            await router.until_known(1)
            assert (await router.ask("hello", model="m"))[0] == 200
            write(path, f"[{entry(old)}, {entry(new)}]")
            await router.until_known(2)
            write(path, f"[{entry(new)}]")
            await router.until(lambda: len(router.router.workers.fleet.workers()) == 1)
            assert (await router.ask("hello", model="m"))[0] == 200

    assert (len(old.requests), len(new.requests)) == (1, 1)
