"""A fleet that is kept from decision to decision against one that is read anew for each."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from warmfleet_contracts.cache.kv_events import Frame, LoadReport, StepTimeFit
from warmfleet_router.routing.cost import PRIOR, Work
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.picker import RankedWorkers
from warmfleet_router.routing.shortlist import ascending_floors
from warmfleet_router.workers.breakers import Cause
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_testing.router.picker_fleet import IDENTITY, OTHER_IDENTITY, PickerFleet, chain, prompts

UIDS = ("a", "b", "c", "d")
PREFIX = list(range(160))


class Traffic:
    """A fleet in use: one method per event that may happen to one of its workers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fleet = PickerFleet(*UIDS, now=lambda: self.now)
        self.kept = self.fleet.picker.fleet()
        self.workers: list[WorkerStatus] = []
        self.leases: list[Lease] = []
        self.requests = 0

    def look(self) -> FleetSnapshot:
        """As a decision does; a status stays the same object until something of it changes."""
        before = {worker.endpoint.uid: worker for worker in self.workers}
        self.workers = [_reused(worker, before.get(worker.endpoint.uid)) for worker in self.fleet.workers]
        self.kept.update(self.workers)
        return self.kept.snapshot()

    def dispatch(self, uid: str) -> None:
        self.requests += 1
        ranked = self.rank(self.look())
        if ranked is not None:
            found = [one for one in ranked.ranking.candidates if one.uid == uid]
            picked = ranked.pick(found[0] if found else ranked.ranking.candidates[0])
            self.leases.append(self.fleet.leases.lease(picked.charge).open())

    def rank(self, snapshot: FleetSnapshot) -> RankedWorkers | None:
        return self.fleet.picker.rank(snapshot, prompts([*PREFIX, *[self.requests] * 20]))

    def first_byte(self, uid: str) -> None:
        for lease in [lease for lease in self.leases if lease.charge.uid == uid][:1]:
            lease.seated()
            lease.first_byte()

    def end(self, uid: str) -> None:
        for lease in [lease for lease in self.leases if lease.charge.uid == uid][:1]:
            lease.close(ended_well=True)
            self.leases.remove(lease)

    def store(self, uid: str) -> None:
        if uid in self.fleet.load:
            held = self.fleet.held[uid]
            self.fleet.store(uid, [hash_ for hash_ in chain(PREFIX) if hash_ not in held][:3])

    def report(self, uid: str, seconds: float = 0.001) -> None:
        if uid in self.fleet.load:
            load = self.fleet.report(seconds, running_sequences=1 + self.requests % 3)
            load.admitted_dispatches["router"] = self.requests // 2
            self.arrive(uid, load)

    def report_slow(self, uid: str) -> None:
        self.report(uid, 0.003)

    def report_unmeasured(self, uid: str) -> None:
        if uid in self.fleet.load:
            self.arrive(uid, LoadReport(step_time=StepTimeFit(), max_running_sequences=8, total_blocks=100))

    def arrive(self, uid: str, load: LoadReport) -> None:
        self.fleet.load[uid] = load
        self.fleet.leases.frame_arrived(uid, Frame(epoch="e", seq=0, load=load))

    def eject(self, uid: str) -> None:
        self.fleet.breakers.eject(uid, "e", Cause.SLOW, "slow")

    def turn_ready_or_not(self, uid: str) -> None:
        self.fleet.unready ^= {uid}

    def change_identity(self, uid: str) -> None:
        identity = self.fleet.identity
        identity[uid] = IDENTITY if identity[uid] == OTHER_IDENTITY else OTHER_IDENTITY

    def leave(self, uid: str) -> None:
        if len(self.fleet.load) > 1 and self.fleet.load.pop(uid, None) is not None:
            self.fleet.leases.forget(uid)
            self.fleet.breakers.forget(uid)

    def come_back(self, uid: str) -> None:
        if uid not in self.fleet.load:
            self.arrive(uid, self.fleet.report(0.002))

    def wait(self, _uid: str) -> None:
        self.now += 20.0


def _reused(worker: WorkerStatus, before: WorkerStatus | None) -> WorkerStatus:
    if before is None:
        return worker
    fields: dict[str, Any] = {
        name: getattr(before, name)
        for name in ("endpoint", "hello", "load", "counts")
        if getattr(before, name) == getattr(worker, name)
    }
    worker = replace(worker, **fields)
    return before if worker == before and worker.load is before.load else worker


EVENTS = st.sampled_from(
    [
        Traffic.dispatch,
        Traffic.first_byte,
        Traffic.end,
        Traffic.store,
        Traffic.report,
        Traffic.report_slow,
        Traffic.report_unmeasured,
        Traffic.eject,
        Traffic.turn_ready_or_not,
        Traffic.change_identity,
        Traffic.leave,
        Traffic.come_back,
        Traffic.wait,
    ]
)


def content(snapshot: FleetSnapshot) -> dict[str, object]:
    fields = {name: getattr(snapshot, name) for name in ("policy", "left_out", "ignores_ejections", "seats")}
    for name in ("ready", "loads", "prices", "floors"):
        fields[name] = list(getattr(snapshot, name).items())
    fields["classes"] = [
        list(ascending_floors([(classes, Work(300, 19))], known=(), skipped=()))
        for classes in snapshot.classes
    ]
    places = {uid: place for place, uids in enumerate(snapshot.alike) for uid in uids}
    assert snapshot.group == places
    return {**fields, "alike": snapshot.alike, "block size": snapshot.block_size_tokens}


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(st.tuples(EVENTS, st.sampled_from(UIDS)), max_size=40),
    looks=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_a_kept_fleet_is_what_it_would_be_if_it_were_read_anew(events: list[Any], looks: list[bool]) -> None:
    traffic = Traffic()

    for (event, uid), looked in zip(events, looks, strict=False):
        event(traffic, uid)
        if looked:
            kept, anew = traffic.look(), traffic.fleet.picker.snapshot(traffic.fleet.workers)
            assert content(kept) == content(anew)
            assert _ranking(traffic.rank(kept)) == _ranking(traffic.rank(anew))


def _ranking(ranked: RankedWorkers | None) -> object:
    return ranked and (ranked.ranking, ranked.certain, ranked.left_out, ranked.predictions)


def test_a_snapshot_reads_what_was_sent_since_when_it_is_charged() -> None:
    traffic = Traffic()
    snapshot = traffic.look()
    before = snapshot.loads["a"]

    traffic.leases.append(traffic.fleet.leases.lease(_charge(traffic, snapshot, "a")).open())
    assert snapshot.loads["a"] == before
    snapshot.charged()

    assert content(snapshot) == content(traffic.fleet.picker.snapshot(traffic.fleet.workers))
    assert snapshot.loads["a"].sequences == before.sequences + 1


def _charge(traffic: Traffic, snapshot: FleetSnapshot, uid: str) -> Any:
    ranked = traffic.rank(snapshot)
    assert ranked is not None
    return ranked.pick(next(one for one in ranked.ranking.candidates if one.uid == uid)).charge


def test_only_workers_whose_load_changed_are_read_again() -> None:
    traffic = Traffic()
    first = traffic.look()
    kept = {uid: id(prices) for uid, prices in first.prices.items()}

    traffic.report("b")
    snapshot = traffic.look()

    assert {uid for uid, prices in snapshot.prices.items() if id(prices) != kept[uid]} == {"b"}
    assert snapshot.prices is first.prices


def test_a_worker_without_measurements_has_the_rates_that_its_peers_report_now() -> None:
    traffic = Traffic()
    traffic.report_unmeasured("a")
    assert traffic.look().prices["a"].rates.per_prefill_token_seconds == 0.001

    for uid in ("b", "c", "d"):
        traffic.report_slow(uid)
    assert traffic.look().prices["a"].rates.per_prefill_token_seconds == 0.003

    for uid in ("b", "c", "d"):
        traffic.report_unmeasured(uid)
    assert traffic.look().prices["a"].rates == PRIOR


def test_what_is_kept_of_a_model_goes_with_it() -> None:
    traffic = Traffic()
    traffic.look()

    traffic.kept.update([])

    snapshot = traffic.kept.snapshot()
    assert not any((snapshot.ready, snapshot.loads, snapshot.prices, snapshot.floors, snapshot.alike))
    assert not any((snapshot.classes, snapshot.group))
