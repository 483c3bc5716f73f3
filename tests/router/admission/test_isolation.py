"""A suspect is computed alone until its first token, and neither it nor others wait for that for good."""

import asyncio

import pytest

from warmfleet_contracts.cache.kv_events import Frame, LoadReport, PlainAnswer
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.isolation import ALONE_SECONDS
from warmfleet_router.routing.leases import ABANDONED_SECONDS
from warmfleet_testing.router.admission_fleet import AdmissionFleet, seats

PATIENCE_SECONDS = 2.0


def uids(*tasks: "asyncio.Task[Dispatch]") -> list[str]:
    """Workers of those that were assigned one."""
    return [task.result().picked.candidate.uid for task in tasks if task.done()]


async def serve(admission: AdmissionFleet) -> None:
    """Let what was submitted get workers, now or from the queue."""
    for _ in range(3):
        await asyncio.sleep(0)
    if admission.admission.held.requests:
        await admission.serve()
    for _ in range(3):
        await asyncio.sleep(0)  # one that got its worker at this moment goes on


async def test_a_worker_computes_one_suspect_at_a_time_and_nothing_beside_it() -> None:
    async with AdmissionFleet(2, seats(8, 0)) as admission:
        suspects = [admission.submit([number] * 4, is_suspect=True) for number in range(3)]
        other = admission.submit([9] * 4)
        await serve(admission)
        assert sorted(uids(*suspects)) == ["w0", "w1"]
        assert not other.done()

        done = [task.result() for task in suspects if task.done()]
        done[0].lease.first_byte()
        await serve(admission)
        assert suspects[2].result().picked.candidate.uid == done[0].picked.candidate.uid
        assert not other.done()

        done[1].lease.first_byte()
        await serve(admission)
        assert other.done()
        assert all(task.result().is_alone for task in suspects)


async def test_other_requests_go_to_the_other_workers() -> None:
    async with AdmissionFleet(2, seats(8, 0)) as admission:
        suspect = admission.submit([1] * 4, is_suspect=True)
        others = [admission.submit([number] * 4) for number in range(2, 5)]
        await serve(admission)

        assert {*uids(suspect), *uids(*others)} == {"w0", "w1"}
        assert len(set(uids(*others))) == 1
        left_out = others[0].result().picked.left_out
        assert left_out == {uids(suspect)[0]: "computes a prompt alone that may have ended an engine"}


@pytest.mark.parametrize(
    "load",
    [
        seats(8, 2, queued_tokens=1),
        LoadReport(waiting_sequences=1, max_running_sequences=8, total_blocks=100),
    ],
    ids=["prompts that are computed", "sequences that wait"],
)
async def test_a_suspect_gets_no_worker_that_reports_prompts(load: LoadReport) -> None:
    async with AdmissionFleet(2, load) as admission:
        suspect = admission.submit([1] * 4, is_suspect=True)
        await serve(admission)
        assert not suspect.done()

        await admission.report("w1", seats(8, 2))
        assert uids(suspect) == ["w1"]


async def test_a_suspect_gets_no_worker_that_was_sent_a_prompt_though_nothing_of_it_is_left_to_compute() -> (
    None
):
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        before = admission.submit([1] * 4)
        await serve(admission)
        dispatch = before.result()
        admitted = {"router": dispatch.lease.dispatch}
        suspect = admission.submit([2] * 4, is_suspect=True)
        running = LoadReport(
            running_sequences=1, max_running_sequences=8, total_blocks=100, admitted_dispatches=admitted
        )
        await admission.report("w0", running)
        assert not suspect.done()

        # A plain answer: its first token is known from the worker's report.
        answer = PlainAnswer(dispatch.lease.dispatch, 0.0, 0.0, 1)
        load = LoadReport(plain_answers={"router": [answer]})
        admission.fleet.leases.frame_arrived("w0", Frame(epoch="e", seq=0, load=load))
        await serve(admission)
        assert uids(suspect) == ["w0"]


async def test_a_prompt_counts_for_a_while_after_its_client_left() -> None:
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        left = admission.submit([1] * 4)
        await serve(admission)
        left.result().release()
        suspect = admission.submit([2] * 4, is_suspect=True)
        await serve(admission)
        assert not suspect.done()

        admission.clock.seconds += ABANDONED_SECONDS
        await serve(admission)
        assert uids(suspect) == ["w0"]


async def test_the_workers_first_token_of_several_choices_or_the_end_lets_others_in() -> None:
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        suspects = [admission.submit([number] * 4, choices=2, is_suspect=True) for number in range(2)]
        await serve(admission)
        assert [task.done() for task in suspects] == [True, False]

        suspects[0].result().lease.first_byte()
        await serve(admission)
        assert suspects[1].done()

        other = admission.submit([9] * 4)
        await serve(admission)
        assert not other.done()
        suspects[1].result().release()
        await serve(admission)
        assert other.done()


async def test_a_suspect_without_a_first_token_keeps_its_worker_for_a_bounded_time() -> None:
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        suspect = admission.submit([1] * 4, is_suspect=True)
        other = admission.submit([2] * 4)
        await serve(admission)
        admission.clock.seconds += ALONE_SECONDS - 0.1
        await serve(admission)
        assert suspect.result().is_alone
        assert not other.done()

        admission.clock.seconds += 0.1
        await serve(admission)
        assert other.done()
        assert not suspect.result().is_alone


async def test_a_suspect_that_has_waited_gets_a_worker_to_which_nothing_more_is_sent() -> None:
    async with AdmissionFleet(2, seats(8, 2, queued_tokens=20)) as admission:
        admission.fleet.load["w1"] = seats(8, 2, queued_tokens=40)
        suspect = admission.submit([1] * 4, is_suspect=True)
        first = admission.submit([2] * 4)
        await serve(admission)
        assert uids(first) == ["w0"]

        admission.clock.seconds += PATIENCE_SECONDS
        later = [admission.submit([number] * 4) for number in range(3, 6)]
        await serve(admission)
        assert not suspect.done()
        assert set(uids(*later)) == {"w1"}

        first.result().lease.first_byte()
        await admission.report("w0", seats(8, 3))
        assert uids(suspect) == ["w0"]
        assert suspect.result().is_alone


async def test_with_a_single_busy_worker_a_suspect_and_others_get_their_turns() -> None:
    async with AdmissionFleet(1, seats(8, 2, queued_tokens=20)) as admission:
        suspect = admission.submit([1] * 4, is_suspect=True)
        await serve(admission)
        admission.clock.seconds += PATIENCE_SECONDS
        others = [admission.submit([number] * 4) for number in range(2, 4)]
        await serve(admission)
        assert uids(suspect, *others) == []

        await admission.report("w0", seats(8, 2))
        assert suspect.done()
        assert uids(*others) == []

        suspect.result().lease.first_byte()
        await serve(admission)
        assert all(other.done() for other in others)


async def test_a_suspect_whose_workers_are_never_without_prompts_goes_beside_them_after_a_bounded_time() -> (
    None
):
    async with AdmissionFleet(1, seats(8, 2, queued_tokens=20)) as admission:
        suspect = admission.submit([1] * 4, is_suspect=True)
        await serve(admission)
        admission.clock.seconds += ALONE_SECONDS - 0.1
        await serve(admission)
        assert not suspect.done()

        admission.clock.seconds += 0.1
        await serve(admission)
        assert not suspect.result().is_alone

        other = admission.submit([2] * 4)
        await serve(admission)
        assert other.done()


async def test_a_retry_waits_for_a_worker_that_computes_a_suspect() -> None:
    async with AdmissionFleet(2, seats(8, 0)) as admission:
        failed = admission.submit([1] * 4)
        await serve(admission)
        (uid,) = uids(failed)
        other_uid = {"w0": "w1", "w1": "w0"}[uid]
        admission.fleet.unready = {uid}
        suspect = admission.submit([2] * 4, is_suspect=True)
        await serve(admission)
        assert uids(suspect) == [other_uid]

        retry = asyncio.create_task(admission.admission.retry(failed.result(), is_suspect=True))
        await serve(admission)
        assert not retry.done()

        suspect.result().lease.first_byte()
        await serve(admission)
        dispatch = await retry
        assert dispatch is not None
        assert dispatch.picked.candidate.uid == other_uid
        assert dispatch.is_alone


async def test_a_suspect_probes_a_half_open_worker_alone() -> None:
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        breakers = admission.fleet.breakers
        for _ in range(5):
            breakers.trial("w0", "e").failed("refused")
        admission.clock.seconds += 60
        suspect = admission.submit([1] * 4, is_suspect=True)
        other = admission.submit([2] * 4)
        await serve(admission)
        assert suspect.result().is_alone
        assert not other.done()

        suspect.result().lease.first_byte()
        suspect.result().trial.completed()
        await serve(admission)
        assert other.done()


async def test_a_draining_worker_keeps_no_request_that_other_workers_could_have() -> None:
    async with AdmissionFleet(2, seats(8, 0)) as admission:
        suspect = admission.submit([1] * 4, is_suspect=True)
        await serve(admission)
        (uid,) = uids(suspect)
        admission.fleet.unready = {uid}
        other = admission.submit([2] * 4)
        await serve(admission)

        assert uids(other) == [{"w0": "w1", "w1": "w0"}[uid]]
