"""Asking routers: what an answer may take, and the problem of one that gave none."""

import asyncio
import gzip
from dataclasses import replace
from typing import Any

import pytest

from warmfleet_operator.routers.client import RouterAnswers, RouterClient, RouterRequest
from warmfleet_operator.routers.poller import FLEET
from warmfleet_testing.router.stub_router import StubRouter, stub_router

MOST_BYTES = 100_000
REQUEST = RouterRequest("/internal/fleet/totals", bytes.decode, MOST_BYTES, 2.0)


class Keys:
    """The operator's token."""

    async def ensure_operator_token(self) -> str:
        return "secret"


def asked(
    router: StubRouter, addresses: dict[str, str], request: RouterRequest[Any] = REQUEST
) -> RouterAnswers[Any]:
    """The answers of the routers at these addresses."""

    async def ask() -> RouterAnswers[Any]:
        keys: Any = Keys()
        client = RouterClient(key_secrets=keys, router_port=router.port)
        try:
            return await client.ask(addresses, request)
        finally:
            await client.close()

    return asyncio.run(ask())


def test_answers_are_by_router_and_the_problem_names_the_one_that_gave_none() -> None:
    with stub_router() as router:
        router.body = b"fine"
        answers = asked(router, {"uid-0": "127.0.0.1", "uid-1": "127.0.0.9"})

    assert {uid: answer for uid, (_, answer) in answers.by_router.items()} == {"uid-0": "fine"}
    assert answers.problem.startswith("router at 127.0.0.9: ")


def test_an_answer_that_unpacks_to_more_than_its_bound_is_not_unpacked() -> None:
    with stub_router() as router:
        router.headers = {"content-encoding": "gzip"}
        router.body = gzip.compress(bytes(50 * MOST_BYTES))
        assert len(router.body) < MOST_BYTES
        answers = asked(router, {"uid-0": "127.0.0.1"})

    assert router.encodings == {"identity"}
    assert not answers.by_router
    assert answers.problem == "router at 127.0.0.1: answers in 'gzip', which was not asked for"


def test_an_answer_that_nests_too_deep_is_the_problem_of_its_router_alone() -> None:
    with stub_router() as router:
        router.body = b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        answers = asked(router, {"uid-0": "127.0.0.1"}, replace(FLEET, path=REQUEST.path))

    assert not answers.by_router
    assert answers.problem.startswith("router at 127.0.0.1: ")


@pytest.mark.parametrize(("length", "answered"), [(MOST_BYTES, True), (MOST_BYTES + 1, False)])
def test_an_answer_is_read_no_further_than_its_bound(length: int, answered: bool) -> None:
    with stub_router() as router:
        router.body = b" " * length
        answers = asked(router, {"uid-0": "127.0.0.1"})

    assert bool(answers.by_router) is answered
    assert ("more than 100,000 bytes" in answers.problem) is not answered
