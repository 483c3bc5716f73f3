"""A request that ends engines: what counts against it, when it is refused, and whom that spares."""

import asyncio
from pathlib import Path

import pytest

from warmfleet_contracts.openai import RequestError
from warmfleet_router.proxy.crash_suspects import (
    CONFIRM_SECONDS,
    KEPT_SECONDS,
    MAX_CONTENTS,
    CrashSuspects,
    RequestContent,
)
from warmfleet_testing.router.admission_fleet import Clock
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import running_stubs

FATAL = RequestContent("a", "/v1/completions", b'{"prompt": "fatal"}')


def is_refused(suspects: CrashSuspects, content: RequestContent = FATAL) -> bool:
    try:
        suspects.check(content)
    except RequestError as error:
        return error.code == "replicas_ended"
    return False


def end_under(suspects: CrashSuspects, uid: str, content: RequestContent = FATAL) -> None:
    suspects.failed(content, uid, "epoch")
    suspects.engine_ended(uid, "epoch")


async def test_a_request_is_refused_after_two_epochs_ended_under_it() -> None:
    suspects = CrashSuspects(Clock())

    end_under(suspects, "w0")
    end_under(suspects, "w0")
    assert suspects.is_suspect(FATAL)
    assert not is_refused(suspects)
    # The end may be noticed before the failure.
    suspects.engine_ended("w1", "epoch")
    suspects.failed(FATAL, "w1", "epoch")

    assert is_refused(suspects)


async def test_failures_are_kept_no_longer_than_the_end_of_an_epoch_would_explain_them() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)

    for number in range(100):
        suspects.failed(FATAL, f"w{number}", "epoch", is_lost=False)
        clock.seconds += CONFIRM_SECONDS / 4

    (record,) = suspects._records.values()
    assert len(record.failed) == 5


async def test_failures_under_workers_that_live_on_do_not_count() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)

    for uid in ("w0", "w1", "w2"):
        suspects.failed(FATAL, uid, "epoch")
        clock.seconds += CONFIRM_SECONDS + 1
        suspects.engine_ended(uid, "epoch")

    assert not suspects.is_suspect(FATAL)
    assert not is_refused(suspects)


async def test_a_lost_connection_makes_a_suspect_at_once_and_an_error_when_its_epoch_ends() -> None:
    suspects = CrashSuspects(Clock())

    suspects.failed(FATAL, "w0", "epoch", is_lost=False)
    assert not suspects.is_suspect(FATAL)
    suspects.engine_ended("w0", "epoch")
    assert suspects.is_suspect(FATAL)
    other = RequestContent("a", "/v1/completions", b"{}")
    suspects.failed(other, "w1", "epoch", is_lost=True)
    assert suspects.is_suspect(other)


async def test_only_the_same_content_of_the_same_tenant_is_refused() -> None:
    suspects = CrashSuspects(Clock())
    end_under(suspects, "w0")
    end_under(suspects, "w1")

    assert is_refused(suspects, RequestContent("a", "/v1/completions", b'{"prompt": "fatal"}'))
    assert not is_refused(suspects, RequestContent("b", "/v1/completions", b'{"prompt": "fatal"}'))
    assert not is_refused(suspects, RequestContent("a", "/v1/completions", b'{"prompt": "other"}'))
    assert not is_refused(suspects, RequestContent("a", "/v1/chat/completions", b'{"prompt": "fatal"}'))


async def test_an_answer_or_time_clears_a_request() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)
    end_under(suspects, "w0")
    suspects.answered(FATAL)
    end_under(suspects, "w1")
    assert not is_refused(suspects)

    end_under(suspects, "w2")
    assert is_refused(suspects)
    clock.seconds += KEPT_SECONDS + 1
    assert not is_refused(suspects)


async def test_what_is_remembered_is_bounded() -> None:
    suspects = CrashSuspects(Clock())
    for number in range(MAX_CONTENTS + 10):
        suspects.failed(RequestContent("a", "/", b"%d" % number), "w0", "epoch")

    assert len(suspects._records) == MAX_CONTENTS
    assert sum(suspects._sizes.values()) == MAX_CONTENTS


async def test_a_retry_waits_until_it_is_known_whether_the_last_epoch_ended() -> None:
    suspects = CrashSuspects(Clock())
    end_under(suspects, "w0")
    suspects.failed(FATAL, "w1", "epoch")
    settling = asyncio.create_task(suspects.settled(FATAL))
    await asyncio.sleep(0)
    assert not settling.done()

    suspects.engine_ended("w1", "epoch")

    async with asyncio.timeout(0.5):
        await settling
    assert is_refused(suspects)


def test_ends_beside_other_prompts_refuse_nothing_until_one_comes_alone() -> None:
    suspects = CrashSuspects(Clock())
    for uid in ("w0", "w1", "w2"):
        suspects.failed(FATAL, uid, "epoch", was_alone=False)
        suspects.engine_ended(uid, "epoch")
    suspects.engine_ended("w3", "epoch")
    suspects.failed(FATAL, "w3", "epoch", was_alone=False)
    assert suspects.is_suspect(FATAL)
    assert not is_refused(suspects)

    end_under(suspects, "w4")

    assert is_refused(suspects)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_ends_engines_costs_two_and_is_refused_on_its_clients_retry(
    tmp_path: Path, stream: bool
) -> None:
    keys = PlantedKeys()
    sender, other = keys.add("sender"), keys.add("other")
    with running_stubs(4) as stubs:
        for stub in stubs:
            stub.faults.fatal = b"poison"
        async with running_router(stubs, tmp_path, keys=keys.file) as router:
            statuses = []
            for _ in range(3):
                status, headers, body = await router.ask("poison", stream=stream, headers=bearer(sender))
                statuses.append(status)
            other_words, _, _ = await router.ask("hello", stream=stream, headers=bearer(sender))
            same_words, _, _ = await router.ask("p o i s o n", stream=stream, headers=bearer(other))
            ended = sum(stub.ended for stub in stubs)

    assert statuses == [422, 422, 422]
    assert b'"replicas_ended"' in body
    assert "retry-after" not in headers
    assert ended == 2
    assert (other_words, same_words) == (200, 200)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_answered_after_an_engine_ended_under_it_is_no_suspect_any_more(
    tmp_path: Path, stream: bool
) -> None:
    with running_stubs(5) as stubs:
        async with running_router(stubs, tmp_path, policy="RoundRobin") as router:
            statuses = []
            for stub in stubs[:3]:
                stub.faults.fatal = b"unlucky"
                while not stub.ended:
                    statuses.append((await router.ask("unlucky", stream=stream))[0])

    assert set(statuses) == {200}


async def test_a_tenant_that_ends_engines_gets_no_request_of_another_refused(tmp_path: Path) -> None:
    keys = PlantedKeys()
    attacker, victim = keys.add("attacker"), keys.add("victim")
    with running_stubs(3) as stubs:
        for stub in stubs:
            stub.faults.fatal = b"poison"
        stubs[0].faults.first_byte_delay_seconds = 30.0
        async with running_router(stubs, tmp_path, keys=keys.file, policy="RoundRobin") as router:
            harmless = asyncio.create_task(router.ask("hello", stream=True, headers=bearer(victim)))
            await router.until(stubs[0].arrived.is_set)
            for _ in stubs[1:]:
                assert (await router.ask("hi", stream=True, headers=bearer(attacker)))[0] == 200
            for stub in stubs[1:]:
                stub.faults.first_byte_delay_seconds = 1.0
            # Beside the harmless one; its retry ends the engine of one of the two others.
            poison = await router.ask("poison", stream=True, headers=bearer(attacker))
            (last,) = (stub for stub in stubs if not stub.ended)
            await router.until(lambda: any(b"hello" in body for body in last.bodies))
            fresh = asyncio.create_task(router.ask("fresh poison", stream=True, headers=bearer(attacker)))
            status, _, body = await harmless
            await fresh

    assert stubs[0].ended
    assert poison[0] == 422
    assert (status, body.count(b"data: {")) == (200, 3)
