"""What the router keeps of a worker or of a model goes with it, and late results do not bring it back."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_router.discovery.base import Discovered, DiscoveryState, Endpoint
from warmfleet_router.proxy.text_proxy import LARGE_TEXTS
from warmfleet_router.routing.slow_workers import SlowWorkerDetector, SlowWorkerEjector
from warmfleet_router.workers.breakers import Cause
from warmfleet_testing.router.admission_fleet import MODEL, AdmissionFleet, Clock, seats
from warmfleet_testing.router.picker_fleet import PickerFleet, prompts
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs

SLOW_SECONDS: Final = 60.0


async def test_results_of_a_dispatch_whose_worker_has_gone_leave_nothing_behind() -> None:
    # given: a dispatch to a worker that leaves the fleet before its first byte
    clock = Clock()
    fleet = PickerFleet("a", "b", policy="RoundRobin", now=clock)
    detector = SlowWorkerDetector()
    ejector = SlowWorkerEjector(detector, clock)
    picked = fleet.pick(prompts([1] * 40))
    trial = fleet.breakers.trial(picked.endpoint.uid, picked.epoch)
    async with fleet.leases.lease(picked.charge) as lease:
        lease.seated()
        for forget in (fleet.leases.forget, fleet.breakers.forget, detector.forget):
            forget(picked.endpoint.uid)

        # when
        ejector.dispatched(picked, trial)
        lease.first_byte()
        ejector.answered(picked, SLOW_SECONDS, trial)
        trial.eject(Cause.IMPOSTOR, "another worker answers")
        trial.failed("broken")

    # then
    uid = picked.endpoint.uid
    assert uid not in fleet.leases.seat_times._seconds
    assert uid not in fleet.leases.dispatches._charges
    assert uid not in fleet.leases.pending._claims
    assert uid not in fleet.breakers._breakers
    assert uid not in detector._answers
    assert uid not in detector._slow_reports


async def test_the_queue_of_a_model_goes_with_it_once_its_requests_have_ended() -> None:
    async with AdmissionFleet(1, seats(1, 0)) as admission:
        dispatch = await admission.submit([1] * 4)
        waiting = admission.submit([2] * 4)
        await admission.serve()
        admission.admission.keep_models([])
        assert admission.admission.held_by_model() == {MODEL: (1, 4)}

        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        admission.admission.keep_models([])
        assert list(admission.admission.held_by_model()) == [MODEL]

        dispatch.release()
        admission.admission.keep_models([MODEL])
        assert list(admission.admission.held_by_model()) == [MODEL]
        admission.admission.keep_models([])
        assert admission.admission.held_by_model() == {}


class ChangingDiscovery:
    """Lists what a test puts into `lists`."""

    def __init__(self) -> None:
        self.lists: asyncio.Queue[Discovered] = asyncio.Queue()
        self.state = DiscoveryState()

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        while True:
            yield await self.lists.get()


async def test_queue_and_metrics_of_a_model_that_leaves_the_list_go(tmp_path: Path) -> None:
    discovery = ChangingDiscovery()
    with running_stub(StubWorker(uid="w0")) as stub:
        endpoint = Endpoint(uid="w0", name="w0", url=stub.url, served_names=("stub",))
        discovery.lists.put_nowait(Discovered((endpoint,), frozenset({"stub"})))
        async with running_router([stub], tmp_path, discovery=discovery) as router:
            assert (await router.ask("hello"))[0] == 200
            discovery.lists.put_nowait(Discovered((), frozenset()))
            await router.until(lambda: not router.router.workers.fleet.models())
            pages = []
            for _ in range(2):
                async with router.http.get(router.url + "/metrics") as response:
                    pages.append(await response.text())
            _, fleet = await router.get("/internal/fleet")
            held = router.router.admission.held

    # then: the last values are exposed once more
    assert 'warmfleet_router_requests_total{model_name="stub",outcome="completed"} 1.0' in pages[0]
    assert 'model_name="stub"' not in pages[1]
    assert (fleet["held"], fleet["tokens"], held) == ({}, {}, Amount())


async def test_a_text_that_waited_is_not_asked_of_a_worker_that_has_gone_meanwhile(tmp_path: Path) -> None:
    discovery = ChangingDiscovery()
    with running_stubs(2) as stubs:
        w0, w1 = (Endpoint(uid=stub.uid, name=stub.uid, url=stub.url) for stub in stubs)
        discovery.lists.put_nowait(Discovered((w0, w1), None))
        async with running_router(stubs, tmp_path, discovery=discovery) as router:

            async def tokenize() -> int:
                body = {"model": "stub", "prompt": "a" * 20_000}
                async with router.http.post(router.url + "/tokenize", json=body) as response:
                    return response.status

            # given: as many large texts at workers as may be, and one that waits
            for stub in stubs:
                stub.faults.hold_headers = True
            held = [asyncio.create_task(tokenize()) for _ in range(LARGE_TEXTS)]
            await router.until(lambda: sum(len(stub.requests) for stub in stubs) == LARGE_TEXTS)
            waiting = asyncio.create_task(tokenize())
            await router.until(lambda: router.router.limits.in_flight.requests == LARGE_TEXTS + 1)

            # when
            discovery.lists.put_nowait(Discovered((w0,), None))
            await router.until(lambda: router.router.workers.fleet.worker("w1") is None)
            for stub in stubs:
                stub.faults.hold_headers = False
            for task in held:
                task.cancel()
            status = await waiting
            kept = list(router.router.workers.breakers._breakers)

    # then
    assert (status, kept) == (200, ["w0"])
