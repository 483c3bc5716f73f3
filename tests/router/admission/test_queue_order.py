"""A full fleet over real sockets: in which order requests are served."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_testing.router.admission_fleet import AdmissionFleet, seats
from warmfleet_testing.router.full_fleet import SLOW, cancelled, held, is_empty, occupied, until
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs


async def test_requests_of_a_tenant_go_by_priority_then_arrival(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path) as router:
            first = await occupied(router, stub, 1)
            waiting = []
            for number, priority in enumerate((5, 5, 0, 9, 3)):
                asking = router.ask("hi", priority=priority, headers={"x-request-id": f"r{number}"})
                waiting.append(asyncio.create_task(asking))
                await until(lambda number=number: held(router).requests == number + 1)
            await cancelled(first)
            await asyncio.gather(*waiting)

    order = [headers["x-request-id"] for headers in stub.requests if headers["x-request-id"].startswith("r")]
    assert order[-5:] == ["r2", "r4", "r0", "r1", "r3"]
    assert [headers["x-warmfleet-priority"] for headers in stub.requests][-5:] == ["0", "3", "5", "5", "9"]


async def test_a_key_caps_the_urgency_that_its_requests_may_ask_for(tmp_path: Path) -> None:
    keys = PlantedKeys()
    modest = keys.add("modest", best_priority=4)
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, keys=keys.file) as router:
            for priority in (-10, 4, 7):
                await router.ask("hi", priority=priority, headers=bearer(modest))

    assert [headers["x-warmfleet-priority"] for headers in stub.requests] == ["4", "4", "7"]


async def test_a_light_tenant_does_not_stand_behind_a_flood(tmp_path: Path) -> None:
    keys = PlantedKeys()
    flooder, light = keys.add("flooder"), keys.add("light")
    settings = AdmissionSettings(max_wait_seconds=60)  # no request is refused, however slow this machine is
    with running_stub(StubWorker(uid="w0", max_running_sequences=8, **SLOW)) as stub:
        async with running_router([stub], tmp_path, keys=keys.file, admission=settings) as router:
            assert (await router.ask("hi", headers=bearer(light)))[0] == 200  # it was there lately
            flood = [
                asyncio.create_task(
                    router.ask("hi", stream=True, headers={**bearer(flooder), "x-request-id": f"flood-{n}"})
                )
                for n in range(80)
            ]
            await until(lambda: held(router).requests >= 70 and stub.running >= 7)
            await asyncio.sleep(0.1)
            most_at_the_stub = stub.running

            for number in range(5):
                name = {"x-request-id": f"light-{number}"}
                assert (await router.ask("hi", headers={**bearer(light), **name}))[0] == 200
            records = [router.router.routing.decisions.find(f"light-{number}") for number in range(5)]
            places = [record.queue_place for record in records if record is not None]
            ranks = [place.behind if place is not None else 0 for place in places]
            still_held = held(router).requests
            answers = await asyncio.gather(*flood)

    # then: one seat was kept free for it, so that hardly any request went before it
    assert most_at_the_stub == 7
    assert len(ranks) == 5
    assert max(ranks) <= 2
    assert still_held >= 10
    assert {status for status, _, _ in answers} == {200}


async def test_a_retry_goes_before_all_that_wait(tmp_path: Path) -> None:
    # given: one worker that fails, one that is full, and others in line
    with running_stubs(2, max_running_sequences=1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            for stub in stubs:
                stub.faults.hold_headers = True
            first = [asyncio.create_task(router.ask(f"occupying {n}")) for n in range(2)]
            await until(lambda: all(stub.running == 1 for stub in stubs))
            for stub in stubs:
                stub.faults.hold_headers = False
            waiting = []
            for number in range(4):
                named = {"x-request-id": f"r{number}"}
                waiting.append(asyncio.create_task(router.ask("hi", headers=named)))
                await until(lambda number=number: held(router).requests == number + 1)
            # when: a seat becomes free on a worker that refuses; then on the other
            leaver = next(n for n, stub in enumerate(stubs) if b"occupying 0" in stub.bodies[0])
            stubs[leaver].faults.refuse_status = 503
            await cancelled([first[0]])
            await until(lambda: len(stubs[leaver].requests) > 1)
            await cancelled([first[1]])
            answers = await asyncio.gather(*waiting)
            await is_empty(router)

    served = [headers["x-request-id"] for headers in stubs[1 - leaver].requests]
    assert [status for status, _, _ in answers] == [200] * 4
    assert served.index("r0") < served.index("r3")


async def test_a_retry_takes_no_worker_for_which_an_earlier_one_waits() -> None:
    # given: three requests at workers of one seat; the first failed, and waits because the others are full
    async with AdmissionFleet(3, seats(1, 0)) as fleet:
        first, second, third = [await fleet.submit([number] * 4) for number in range(3)]
        await fleet.admission.stop()
        for failed in (first, third):
            fleet.fleet.load[failed.picked.candidate.uid] = seats(1, 1)
        earlier = asyncio.create_task(fleet.admission.retry(first))
        await asyncio.sleep(0)

        # when: the second one ends, and the third fails before the queue is served
        second.release()
        later = asyncio.create_task(fleet.admission.retry(third))
        await asyncio.sleep(0)
        await fleet.admission.start()
        await fleet.serve()

        # then
        assert earlier.done()
        assert not later.done()
        again = earlier.result()
        assert again is not None
        assert again.picked.candidate.uid == second.picked.candidate.uid
        later.cancel()
        await asyncio.gather(later, return_exceptions=True)


async def test_a_retry_whose_last_worker_is_lost_ends_and_blocks_no_other_request(tmp_path: Path) -> None:
    # given: a request that failed on one worker and waits for the other, which is full
    with ExitStack() as stack, ExitStack() as mortal:
        failing = stack.enter_context(running_stub(StubWorker(uid="w0", max_running_sequences=1)))
        full = mortal.enter_context(running_stub(StubWorker(uid="w1", max_running_sequences=1)))
        async with running_router([failing, full], tmp_path) as router:
            failing.faults.hold_headers = full.faults.hold_headers = True
            occupying = [asyncio.create_task(router.ask(f"occupying {n}")) for n in range(2)]
            await until(lambda: failing.running == full.running == 1)
            failing.faults.hold_headers = False
            failing.faults.refuse_status = 503
            waiting = asyncio.create_task(router.ask("hi"))
            await until(lambda: held(router).requests == 1)
            mine = next(n for n in range(2) if b"occupying %d" % n in failing.bodies[0])
            await cancelled([occupying[mine]])
            await until(lambda: len(failing.requests) > 1 and held(router).requests == 1)
            failing.faults.refuse_status = 0
            # when
            mortal.close()
            status, _, _ = await waiting
            other, _, _ = await router.ask("hi")
            await cancelled(occupying)

    assert (status, other) == (503, 200)
