"""Answers of servers are read to a bound: whole bodies."""

import gzip
from collections.abc import Iterator

import pytest

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.router_client import (
    MOST_ERROR_BYTES,
    get_body,
    get_json,
    router_client,
)
from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH
from warmfleet_testing.router.stub_router import StubRouter, stub_router


@pytest.fixture
def router() -> Iterator[StubRouter]:
    with stub_router() as made:
        yield made


def read(router: StubRouter, most_bytes: int) -> bytes:
    with router_client(f"http://127.0.0.1:{router.port}") as client:
        return get_body(client, FLEET_TOTALS_PATH, most_bytes=most_bytes)


def test_an_answer_of_exactly_the_bound_is_taken(router: StubRouter) -> None:
    router.body = b"x" * 1000

    assert read(router, 1000) == router.body


def test_an_answer_beyond_the_bound_is_an_error_that_names_url_and_bound(router: StubRouter) -> None:
    router.body = b"x" * 1001

    with pytest.raises(CliError) as caught:
        read(router, 1000)

    url = f"http://127.0.0.1:{router.port}{FLEET_TOTALS_PATH}"
    assert str(caught.value) == f"{url} answers more than 1,000 bytes"
    assert caught.value.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize("status", [200, 503])
def test_a_compressed_answer_is_not_asked_for_and_not_unpacked(router: StubRouter, status: int) -> None:
    router.status = status
    router.body = gzip.compress(b"{}")
    router.headers = {"content-encoding": "gzip"}

    with pytest.raises(CliError, match="answers in 'gzip', which was not asked for") as caught:
        read(router, 10**6)

    assert router.encodings == {"identity"}
    assert str(caught.value).startswith(f"http://127.0.0.1:{router.port}{FLEET_TOTALS_PATH} ")


def test_a_refusal_is_quoted_up_to_its_bound(router: StubRouter) -> None:
    router.status = 503
    router.body = b'{"error": {"message": "draining"}}'
    with pytest.raises(CliError, match=r"^draining$"):
        read(router, 10)

    router.body += b" " * MOST_ERROR_BYTES
    with pytest.raises(CliError, match=f"answers more than {MOST_ERROR_BYTES:,} bytes"):
        read(router, 10)


def test_a_document_has_a_bound_without_being_given_one(router: StubRouter) -> None:
    router.body = b'"' + b"x" * (5 * 1024 * 1024) + b'"'

    with (
        router_client(f"http://127.0.0.1:{router.port}") as client,
        pytest.raises(CliError, match="answers more than 4,194,304 bytes"),
    ):
        get_json(client, FLEET_TOTALS_PATH)
