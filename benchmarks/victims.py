"""Is the replica that a shrink takes the one whose loss costs least?

Seeded fleets of 3 to 8 replicas, some of which joined late: caches with the replicas' order of eviction, the
router's prefix index fed by their events, and traffic of shared beginnings and of conversations. A request
goes where the least is to be computed, what waits there included. Then each replica in turn is taken away and
the minutes that follow are replayed without it: the tokens that are computed are compared with those
without the replica that the operator's rule takes. Beside it: the youngest, as Kubernetes chooses; a choice
that knows which blocks will be asked for, and takes the replica that alone holds fewest of them; and the one
of another replay of the same requests, each up to half a second later, which shows how often the replay
agrees with itself. Half of the fleets have room in their caches, half are full.

    python benchmarks/victims.py    # 200 fleets, about twenty minutes
"""

import argparse
import heapq
import itertools
import math
import random
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_contracts.cache.kv_events import Frame, LoadReport
from warmfleet_contracts.cache.resident import ChangeBuffer, ResidentSet
from warmfleet_operator.scaling.shrink import unique_value
from warmfleet_router.workers.block_use import HALVING_SECONDS
from warmfleet_router.workers.index_sweeper import PASSES_PER_HALVING
from warmfleet_router.workers.prefix_index import PrefixIndex

BEFORE_SECONDS: Final = 360.0
AFTER_SECONDS: Final = 200.0
BLOCKS_PER_SECOND: Final = 30.0
"""That a replica computes."""
BLOCK_SIZE_TOKENS: Final = 16
PRESSURES: Final = {"room": (0.3, 0.8), "full": (1.0, 2.5)}
"""Blocks that were asked for in the last 200 seconds, as a multiple of all caches together."""
RULES: Final = ("operator", "youngest", "foreseen", "replayed")
SHIFT_SECONDS: Final = 0.5
"""By which a request of the second replay is later at most."""
CLOSE_RATIO: Final = 1.01
REQUIRED: Final = 0.95

Prompt = Sequence[BlockHash]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one fleet's clients do."""

    beginnings: int
    popularity_exponent: float
    shared_ratio: float
    turns: tuple[int, ...]
    think_seconds: float
    requests_per_second: float

    @classmethod
    def drawn(cls, draw: random.Random, replicas: int) -> "Traffic":
        return cls(
            draw.randint(3, 40),
            draw.uniform(0.3, 1.2),
            draw.uniform(0.3, 1.0),
            draw.choice([(0,), (0, 0, 2), (0, 3, 6), (4, 8)]),
            draw.uniform(10, 60),
            replicas * draw.uniform(0.2, 0.6),
        )

    def requests(self, draw: random.Random, seconds: float) -> list[tuple[float, Prompt]]:
        """Arrivals and prompts, in order."""

        def new(blocks: int) -> list[BlockHash]:
            return [BlockHash(draw.randbytes(16)) for _ in range(blocks)]

        beginnings = [new(draw.randint(8, 40)) for _ in range(self.beginnings)]
        weights = [(place + 1) ** -self.popularity_exponent for place in range(self.beginnings)]
        order = itertools.count()
        due: list[tuple[float, int, int, list[BlockHash]]] = []
        made: list[tuple[float, Prompt]] = []
        now = 0.0
        while now < seconds:
            now += draw.expovariate(self.requests_per_second)
            shares = draw.random() < self.shared_ratio
            first = draw.choices(beginnings, weights)[0] if shares else []
            heapq.heappush(
                due, (now, next(order), draw.choice(self.turns), [*first, *new(draw.randint(2, 12))])
            )
            while due and due[0][0] <= now:
                at, _, turns, prompt = heapq.heappop(due)
                made.append((at, prompt))
                if turns:
                    pause = draw.lognormvariate(math.log(self.think_seconds), 0.7)
                    later = [*prompt, *new(draw.randint(2, 8))]
                    heapq.heappush(due, (at + pause, next(order), turns - 1, later))
        return made


class Cache:
    """The blocks of one replica, least recently used first; of a prompt its tail goes first."""

    def __init__(self, capacity: int, blocks: OrderedDict[BlockHash, None] | None = None) -> None:
        self.blocks: OrderedDict[BlockHash, None] = OrderedDict() if blocks is None else blocks.copy()
        self.changes = ChangeBuffer()
        self.capacity = capacity

    def matched(self, prompt: Prompt) -> int:
        blocks = self.blocks
        return next((place for place, one in enumerate(prompt) if one not in blocks), len(prompt))

    def use(self, prompt: Prompt) -> None:
        blocks = self.blocks
        for one in reversed(prompt):
            if one not in blocks:
                blocks[one] = None
                self.changes.store(one)
            blocks.move_to_end(one)
        while len(blocks) > self.capacity:
            self.changes.remove(blocks.popitem(last=False)[0])


class Replicas:
    """Caches, and what waits at each, in blocks."""

    def __init__(self, caches: Mapping[str, Cache], waiting: Mapping[str, float], now: float) -> None:
        self.caches = dict(caches)
        self.waiting = dict(waiting)
        self._now = now

    def without(self, gone: str) -> "Replicas":
        caches = {uid: Cache(one.capacity, one.blocks) for uid, one in self.caches.items() if uid != gone}
        return Replicas(caches, {uid: self.waiting[uid] for uid in caches}, self._now)

    def answer(self, now: float, prompt: Prompt) -> tuple[str, int]:
        """Where a prompt goes, and the blocks that are computed there."""
        done = BLOCKS_PER_SECOND * (now - self._now)
        self._now = now
        computed = {}
        for uid, cache in self.caches.items():
            self.waiting[uid] = max(self.waiting[uid] - done, 0.0)
            computed[uid] = len(prompt) - cache.matched(prompt)
        least = min(computed.values())
        key = prompt[min(len(prompt) - least, len(prompt) - 1)]

        def rank(uid: str) -> tuple[float, int]:
            return computed[uid] + self.waiting[uid], zlib.crc32(key + uid.encode())

        uid = min(computed, key=rank)
        self.waiting[uid] += computed[uid]
        self.caches[uid].use(prompt)
        return uid, computed[uid]


class Router:
    """The production index, fed with what caches store and remove."""

    def __init__(self, uids: Sequence[str]) -> None:
        self.index = PrefixIndex()
        self._mirrors = {uid: ResidentSet("epoch") for uid in uids}
        self._pass_seconds = HALVING_SECONDS / PASSES_PER_HALVING
        self._passes = 0
        for uid, mirror in self._mirrors.items():
            self.index.connected(uid, "epoch")
            for frame in mirror.snapshot(LoadReport()):
                self.index.apply(uid, frame)

    def pass_time(self, now: float) -> None:
        while now >= (self._passes + 1) * self._pass_seconds:
            self._passes += 1
            self.count(halve=self._passes % PASSES_PER_HALVING == 0)

    def count(self, *, halve: bool = False) -> None:
        self.index.count_use(halve=halve)
        while self.index.sweep():
            pass

    def answered(self, uid: str, prompt: Prompt, changes: ChangeBuffer) -> None:
        self.index.touched(prompt)
        _, stored, removed = changes.take()
        if not (stored or removed):
            return
        mirror = self._mirrors[uid]
        mirror.change(mirror.seq + 1, stored=stored, removed=removed)
        self.index.apply(
            uid,
            Frame(epoch="epoch", seq=mirror.seq, stored=stored, removed=removed, digest=mirror.digest),
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """One fleet."""

    seed: int
    kind: str
    replicas: int
    computed: Mapping[str, int]
    """Blocks that were computed in the replay without each replica."""
    chosen: Mapping[str, str]
    """By rule."""

    def excess(self, rule: str) -> float:
        """How much more than without the best one, as a share."""
        return self.computed[self.chosen[rule]] / min(self.computed.values()) - 1


def judged(seed: int, kind: str) -> Judged:
    draw = random.Random(seed)
    uids = [f"replica-{number}" for number in range(draw.randint(3, 8))]
    requests = Traffic.drawn(draw, len(uids)).requests(draw, BEFORE_SECONDS + AFTER_SECONDS)
    lately = {one for at, prompt in requests if -200 <= at - BEFORE_SECONDS < 0 for one in prompt}
    capacity = max(round(len(lately) / len(uids) / draw.uniform(*PRESSURES[kind])), 60)
    joined = {uid: 0.0 if draw.random() < 0.6 else draw.uniform(0, 0.8 * BEFORE_SECONDS) for uid in uids}
    joined[uids[0]] = 0.0
    replicas, router = Replicas({}, {}, 0.0), Router(uids)
    before = [one for one in requests if one[0] < BEFORE_SECONDS]
    for at, prompt in before:
        router.pass_time(at)
        for uid in uids:
            if joined[uid] <= at and uid not in replicas.caches:
                replicas.caches[uid], replicas.waiting[uid] = Cache(capacity), 0.0
        uid, _ = replicas.answer(at, prompt)
        router.answered(uid, prompt, replicas.caches[uid].changes)
    router.count()
    after = requests[len(before) :]
    later = sorted(((at + draw.uniform(0, SHIFT_SECONDS), prompt) for at, prompt in after), key=itemgetter(0))
    computed, again = replayed(replicas, after), replayed(replicas, later)
    rules = chosen(replicas, router, joined, after)
    rules["replayed"] = min(uids, key=lambda uid: (again[uid], uid))
    return Judged(seed, kind, len(uids), computed, rules)


def replayed(replicas: Replicas, requests: Sequence[tuple[float, Prompt]]) -> dict[str, int]:
    """Blocks that are computed for these requests without each replica."""
    computed = {}
    for gone in replicas.caches:
        left = replicas.without(gone)
        computed[gone] = sum(left.answer(at, prompt)[1] for at, prompt in requests)
    return computed


def chosen(
    replicas: Replicas,
    router: Router,
    joined: Mapping[str, float],
    after: Sequence[tuple[float, Prompt]],
) -> dict[str, str]:
    asked = {one for _, prompt in after for one in prompt}
    holders: dict[BlockHash, list[str]] = {}
    for uid, cache in replicas.caches.items():
        for one in cache.blocks.keys() & asked:
            holders.setdefault(one, []).append(uid)
    needed = dict.fromkeys(joined, 0)
    for held in holders.values():
        if len(held) == 1:
            needed[held[0]] += 1

    def value(uid: str) -> tuple[float, int, int]:
        unique = router.index.unique_value(uid)
        return unique_value(
            ReplicaTotals(
                uid=uid,
                evictable_tokens=BLOCK_SIZE_TOKENS * len(replicas.caches[uid].blocks),
                unique_value_tokens_per_second=unique.reuses_per_second * BLOCK_SIZE_TOKENS,
            )
        )

    return {
        "operator": min(joined, key=lambda uid: (value(uid), uid)),
        "youngest": max(joined, key=lambda uid: (joined[uid], uid)),
        "foreseen": min(joined, key=lambda uid: (needed[uid], uid)),
    }


def table(fleets: Sequence[Judged]) -> Iterator[str]:
    yield f"{'caches':6} {'rule':9} {'fleets':>6} {'best':>7} {'within 1 %':>10} {'more computed':>13}"
    for kind in PRESSURES:
        of_kind = [fleet for fleet in fleets if fleet.kind == kind]
        for rule in RULES:
            excess = [fleet.excess(rule) for fleet in of_kind]
            best = sum(one == 0 for one in excess) / len(excess)
            close = sum(one <= CLOSE_RATIO - 1 for one in excess) / len(excess)
            mean = sum(excess) / len(excess)
            yield f"{kind:6} {rule:9} {len(excess):6} {best:7.1%} {close:10.1%} {mean:13.2%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    kinds = list(PRESSURES)
    fleets = []
    for seed in range(options.fleets):
        fleets.append(judged(seed, kinds[seed % len(kinds)]))
        if (seed + 1) % 20 == 0:
            print(f"{seed + 1} fleets", *table(fleets), sep="\n", flush=True)
    best = sum(fleet.excess("operator") == 0 for fleet in fleets) / len(fleets)
    targets = [Target("fleets in which the victim is the best one", best, REQUIRED)]
    return report.end("\n".join(table(fleets)), targets, fleets=[asdict(fleet) for fleet in fleets])


if __name__ == "__main__":
    sys.exit(main())
