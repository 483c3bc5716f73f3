"""No query of the routing room changes anything, after any events."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.policies import POLICIES
from warmfleet_testing.router.object_state import unchanged
from warmfleet_testing.router.picker_fleet import PickerFleet, chain, prompts

UIDS = ("a", "b", "c")
PREFIX = list(range(160))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Traffic:
    """A fleet in use: one method per event that may happen to it."""

    def __init__(self, policy: str) -> None:
        self.clock = Clock()
        self.fleet = PickerFleet(*UIDS, policy=policy, now=self.clock)
        self.leases: list[Lease] = []
        self.requests = 0

    def dispatch(self) -> None:
        self.requests += 1
        picked = self.fleet.pick(prompts([*PREFIX, *[self.requests] * 20]))
        self.leases.append(self.fleet.leases.lease(picked.charge).open())

    def first_byte(self) -> None:
        for lease in self.leases[:1]:
            lease.seated()
            lease.first_byte()

    def end(self) -> None:
        for lease in self.leases[:1]:
            lease.close(ended_well=True)
        del self.leases[:1]

    def store(self) -> None:
        self.fleet.store("a", [hash_ for hash_ in chain(PREFIX) if hash_ not in self.fleet.held["a"]][:3])

    def report(self) -> None:
        for uid in UIDS:
            load = self.fleet.report(0.001, running_sequences=1)
            load.admitted_dispatches["router"] = self.requests // 2
            self.fleet.load[uid] = load
            self.fleet.leases.frame_arrived(uid, Frame(epoch="e", seq=0, load=load))

    def fail(self) -> None:
        for uid in ("b", "c"):
            for _ in range(5):
                with self.fleet.breakers.trial(uid, "e") as trial:
                    trial.failed("reset")

    def wait(self) -> None:
        self.clock.now += 1.5


EVENTS = ("dispatch", "first_byte", "end", "store", "report", "fail", "wait")


@settings(max_examples=100, deadline=None)
@given(policy=st.sampled_from(sorted(POLICIES)), events=st.lists(st.sampled_from(EVENTS), max_size=30))
def test_no_query_of_the_picker_and_its_parts_writes(policy: str, events: list[str]) -> None:
    traffic = Traffic(policy)
    for event in events:
        getattr(traffic, event)()
    fleet, leases = traffic.fleet, traffic.fleet.leases
    asked, workers, hashes = prompts([*PREFIX, 1, 2, 3]), fleet.workers, chain(PREFIX)
    fleet.pick(asked)  # hashes the prompt, once

    with unchanged(fleet, asked, workers):
        snapshot = fleet.picker.snapshot(workers)
        fleet.picker.pick(workers, asked)
        fleet.picker.rank(snapshot, asked)
        assert leases.pending.blocks >= 0
        for worker in workers:
            uid = worker.endpoint.uid
            fleet.picker.predictor.predict(worker, asked)
            fleet.picker.predictor.is_coming(worker, asked, 16)
            leases.pending.match(uid, hashes, fleet.index.matched_blocks(uid, hashes) or 0, fleet.index)
            leases.pending.claims(uid, hashes[0])
            leases.dispatches.unreported(uid, worker.load.admitted_dispatches)
            leases.dispatches.ended(uid, worker.load)
            leases.dispatches.open_count(uid)
            leases.seat_times.seconds(uid)
            fleet.breakers.status(uid, "e")
