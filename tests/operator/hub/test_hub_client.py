"""One question to a hub on a local port: what is answered, what is refused, and where nothing is sent to."""

import asyncio
import gzip
import json
import socket
import threading
import tracemalloc
from pathlib import Path

import pytest

from warmfleet_operator.desired.commits import HubRevision
from warmfleet_operator.hub import client
from warmfleet_operator.hub.client import HubAccess, HubRefusedError, HubUnreachableError, ask_commit
from warmfleet_operator.settings import OperatorSettings
from warmfleet_testing.engine.fake_hub import REPOSITORY, REVISION, FakeHub, running_hub

TOKEN = "hf_" + "planted" * 4
OTHER = "f" * 40


def asked(hub: FakeHub, revision: str = "main", *, repository: str = REPOSITORY, token: str = "") -> str:
    return asyncio.run(ask_commit(HubAccess(hub.url), HubRevision(repository, revision), token))


def test_branches_tags_and_pull_requests_have_commits() -> None:
    with running_hub() as hub:
        hub.branches = {"main": REVISION, "v1.0": OTHER, "refs/pr/3": "e" * 40}

        found = [asked(hub, name) for name in hub.branches]

    assert found == list(hub.branches.values())
    assert hub.seen[2].path == f"/api/models/{REPOSITORY}/revision/refs%2Fpr%2F3"
    assert not any(seen.token for seen in hub.seen)


@pytest.mark.parametrize(
    ("behaviour", "revision", "token", "text", "wants_token"),
    [
        ({}, "nope", "", "has no branch, tag or commit nope (404)", True),
        ({"token": TOKEN}, "main", "", "private, gated or misspelt (401 without a token)", True),
        ({"token": TOKEN}, "main", "hf_wrong", "the hub refused the token", True),
        ({"gated": True}, "main", TOKEN, "access to acme/tiny is not granted (403)", True),
        ({"failures": [418]}, "main", "", "the hub answered 418", False),
    ],
)
def test_a_refusal_names_what_to_change(
    behaviour: dict[str, object], revision: str, token: str, text: str, wants_token: bool
) -> None:
    with running_hub() as hub, pytest.raises(HubRefusedError) as refused:
        hub.branches = {"main": REVISION}
        for name, value in behaviour.items():
            setattr(hub, name, value)
        asked(hub, revision, token=token)

    assert text in str(refused.value)
    assert refused.value.wants_token == wants_token
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_busy_hub_is_asked_again_later(status: int) -> None:
    with running_hub() as hub, pytest.raises(HubUnreachableError, match=f"answered {status}") as error:
        hub.failures = [status]
        asked(hub)

    assert error.value.pause_seconds == 0.0  # the stub's Retry-After


def test_a_hub_that_is_not_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"

    with pytest.raises(HubUnreachableError, match=url):
        asyncio.run(ask_commit(HubAccess(url), HubRevision(REPOSITORY, "main")))


def test_a_hub_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    with running_hub() as hub, pytest.raises(HubUnreachableError):
        hub.branches = {"main": REVISION}
        hub.silent = threading.Event()
        try:
            asked(hub)
        finally:
            hub.silent.set()


def test_no_answer_is_read_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hub() as hub:
        hub.branches = {"main": REVISION}
        size = len(json.dumps(hub.listing(REVISION)))
        monkeypatch.setattr(client, "MAX_ANSWER_BYTES", size)
        assert asked(hub) == REVISION
        monkeypatch.setattr(client, "MAX_ANSWER_BYTES", size - 1)
        with pytest.raises(HubUnreachableError, match=f"more than {size - 1} bytes"):
            asked(hub)


def test_a_compressed_answer_is_not_unpacked() -> None:
    with running_hub() as hub:
        hub.branches = {"main": REVISION}
        hub.gzipped = gzip.compress(bytes(16 * client.MAX_ANSWER_BYTES))
        tracemalloc.start()
        try:
            with pytest.raises(HubUnreachableError, match="answers in 'gzip', which was not asked for"):
                asked(hub)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak_bytes < client.MAX_ANSWER_BYTES


def test_a_renamed_repository_is_followed_inside_the_hub_and_nowhere_else() -> None:
    old = "/api/models/acme/old/revision/main"
    with running_hub() as hub, running_hub() as stranger:
        hub.branches = stranger.branches = {"main": REVISION}
        hub.redirects = {old: f"/api/models/{REPOSITORY}/revision/main"}
        assert asked(hub, repository="acme/old", token=TOKEN) == REVISION

        for location in (
            f"{stranger.url}{old}",
            "http://169.254.169.254/latest",
            "//elsewhere/x",
            "ftp://a/",
        ):
            hub.redirects = {old: location}
            with pytest.raises(HubUnreachableError, match="redirects to another host"):
                asked(hub, repository="acme/old", token=TOKEN)
        hub.redirects = {old: old}
        with pytest.raises(HubUnreachableError, match="redirects more than 3 times"):
            asked(hub, repository="acme/old")

    assert stranger.seen == []


@pytest.mark.parametrize("failures", [[], [503], [418]])
def test_a_password_in_the_endpoint_is_used_and_never_shown(failures: list[int]) -> None:
    with running_hub() as hub:
        hub.branches, hub.failures = {"main": REVISION}, failures
        access = HubAccess(hub.url.replace("http://", "http://user:planted@"))
        question = ask_commit(access, HubRevision(REPOSITORY, "main" if failures else "nope"))
        with pytest.raises((HubRefusedError, HubUnreachableError)) as refused:
            asyncio.run(question)

    assert hub.seen[0].token.startswith("Basic ")
    assert "planted" not in str(refused.value) + access.name
    assert access.origin == HubAccess(hub.url).origin


@pytest.mark.parametrize(
    "endpoint", ["https://hub.example:443/x", "HTTPS://Hub.Example", "https://u:p@hub.example"]
)
def test_an_origin_is_scheme_host_and_port(endpoint: str) -> None:
    assert HubAccess(endpoint).origin == HubAccess("https://hub.example").origin
    for other in ("http://hub.example", "https://hub.example:8443", "https://hub.example@elsewhere.example"):
        assert HubAccess(endpoint).origin != HubAccess(other).origin


@pytest.mark.parametrize(
    ("endpoint", "no_proxy", "proxy"),
    [
        ("", "", "http://tls.example:3128"),
        ("http://hub.inside.example", "", "http://plain.example:3128"),
        ("https://hub.inside.example", "inside.example", ""),
        ("https://hub.inside.example", " .inside.example ,x", ""),
        ("https://hub.inside.example:8443", "hub.inside.example:8443", ""),
        ("https://hub.inside.example", "side.example", "http://tls.example:3128"),
        ("https://hub.inside.example", "*", ""),
    ],
)
def test_the_hub_is_reached_as_fetches_reach_it(endpoint: str, no_proxy: str, proxy: str) -> None:
    settings = OperatorSettings(
        release_namespace="models",
        hub_endpoint=endpoint,
        http_proxy="http://plain.example:3128",
        https_proxy="http://tls.example:3128",
        no_proxy=no_proxy,
    )

    access = HubAccess.of(settings)

    assert access.endpoint == (endpoint or "https://huggingface.co")
    assert access.proxy == proxy


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_used_with_and_without_a_scheme(scheme: str) -> None:
    with running_hub() as proxy:
        proxy.branches = {"main": REVISION}
        settings = OperatorSettings(
            release_namespace="models",
            hub_endpoint="http://hub.invalid",
            http_proxy=scheme + proxy.url.removeprefix("http://"),
        )
        access = HubAccess.of(settings)
        assert asyncio.run(ask_commit(access, HubRevision(REPOSITORY, "main"))) == REVISION

    assert proxy.seen[0].path == f"http://hub.invalid/api/models/{REPOSITORY}/revision/main"


@pytest.mark.parametrize("proxy", ["ftp://proxy.example", "socks5://proxy.example:1080"])
def test_a_proxy_that_cannot_be_used_is_reported(proxy: str) -> None:
    access = HubAccess("http://hub.invalid", proxy=proxy)

    with pytest.raises(HubUnreachableError, match=r"(?i)proxy"):
        asyncio.run(ask_commit(access, HubRevision(REPOSITORY, "main")))


def test_a_ca_bundle_that_is_not_there_leaves_the_images_certificates(tmp_path: Path) -> None:
    with running_hub() as hub:
        hub.branches = {"main": REVISION}
        access = HubAccess(hub.url, ca_file=tmp_path / "ca.crt")
        assert asyncio.run(ask_commit(access, HubRevision(REPOSITORY, "main"))) == REVISION

    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(HubUnreachableError):
        asyncio.run(ask_commit(access, HubRevision(REPOSITORY, "main")))
