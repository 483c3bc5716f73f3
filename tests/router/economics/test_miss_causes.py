"""Why tokens missed, against an oracle over the full log of events, and case by case."""

import random
from collections import OrderedDict
from typing import Final

import pytest
from msgspec.structs import replace

from warmfleet_contracts.cache.blocks import BlockHash, cacheable_tokens
from warmfleet_contracts.cache.fleet_totals import MissTokens
from warmfleet_contracts.cache.kv_events import Frame, LoadReport
from warmfleet_router.economics.ghost_list import PARTS, GhostList
from warmfleet_router.economics.misses import (
    CauseRun,
    MissCause,
    OtherIdentity,
    PromptCauses,
    PromptHolders,
    missed_tokens,
    prompt_causes,
)
from warmfleet_router.economics.model_counts import ModelCount
from warmfleet_router.routing.miss_causes import MissCauses
from warmfleet_testing.cache.miss_oracle import MissOracle
from warmfleet_testing.engine.digests import digest_of
from warmfleet_testing.router.picker_fleet import (
    BLOCK,
    IDENTITY,
    OTHER_IDENTITY,
    PickerFleet,
    chain,
    prompts,
)

CACHE_BLOCKS: Final = 120
CONVERSATIONS: Final = 60


def no_evictions(block_hash: BlockHash) -> int:
    return 0


class Cache:
    """One worker process: least recently used blocks go first."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.seq = 0
        self.blocks: OrderedDict[BlockHash, None] = OrderedDict()

    def serve(self, hashes: list[BlockHash], prompt_tokens: int) -> tuple[int, Frame]:
        """Tokens found cached, and the frame of what changed."""
        held = next((n for n, block_hash in enumerate(hashes) if block_hash not in self.blocks), len(hashes))
        for block_hash in reversed(hashes):
            # Tail first: a prefix is useless once its head is gone.
            self.blocks.pop(block_hash, None)
            self.blocks[block_hash] = None
        removed = []
        while len(self.blocks) > CACHE_BLOCKS:
            removed.append(self.blocks.popitem(last=False)[0])
        stored = [block_hash for block_hash in hashes[held:] if block_hash not in removed]
        removed = [block_hash for block_hash in removed if block_hash not in hashes[held:]]
        return min(held * BLOCK, cacheable_tokens(prompt_tokens, BLOCK)), self.frame(stored, removed)

    def clear(self) -> Frame:
        self.blocks.clear()
        return self.frame([], [], cleared=True)

    def frame(self, stored: list[BlockHash], removed: list[BlockHash], *, cleared: bool = False) -> Frame:
        self.seq += bool(stored or removed or cleared)
        return Frame(
            epoch=self.epoch,
            seq=self.seq,
            stored=list(stored),
            removed=list(removed),
            cleared=cleared,
            digest=digest_of(self.blocks),
        )


class Replay:
    """Requests to a fleet that evicts, restarts, shrinks, is cleared and rolled out."""

    def __init__(self, seed: int, ghosts: GhostList) -> None:
        self.draw = random.Random(seed)
        self.ghosts = ghosts
        self.oracle = MissOracle(BLOCK)
        self.count = ModelCount()
        self.fleet = PickerFleet()
        self.caches: dict[str, Cache] = {}
        self.made = 0
        self.conversations = [[number] * 40 for number in range(CONVERSATIONS)]
        for _ in range(4):
            self.join(IDENTITY)

    def join(self, identity: bytes) -> None:
        self.made += 1
        uid = f"w{self.made}"
        self.fleet.identity[uid] = identity
        self.fleet.load[uid] = self.fleet.report(0.001)
        self.begin(uid)

    def begin(self, uid: str) -> None:
        """A new process of the worker."""
        self.made += 1
        cache = self.caches[uid] = Cache(f"e{self.made}")
        self.fleet.index.connected(uid, cache.epoch)
        self.tell(uid, replace(cache.frame([], []), snapshot_left=0))

    def leave(self, uid: str) -> None:
        del self.caches[uid], self.fleet.load[uid], self.fleet.identity[uid]
        self.fleet.index.forget(uid)
        self.ghosts.forget(uid)
        self.oracle.gone(uid)

    def tell(self, uid: str, frame: Frame) -> None:
        self.ghosts.frame_arrived(uid, frame)
        self.fleet.index.apply(uid, frame)
        self.oracle.frame(uid, frame)

    def event(self) -> None:
        uid = self.draw.choice(list(self.caches))
        match self.draw.randrange(5):
            case 0:
                self.ghosts.ended(uid, self.caches[uid].epoch)
                self.oracle.gone(uid)
                self.begin(uid)
            case 1:
                self.leave(uid)
                self.join(IDENTITY)
            case 2:
                self.tell(uid, self.caches[uid].clear())
            case 3:
                # Half way through a rollout: workers of both revisions.
                self.leave(uid)
                self.join(OTHER_IDENTITY)
            case 4 if len(self.caches) > 2:
                self.leave(uid)
                self.join(IDENTITY)

    def request(self) -> None:
        conversation = self.draw.choice(self.conversations)
        if len(conversation) > 1500:
            del conversation[40:]
        if self.draw.random() < 0.8:
            # Otherwise the same once more, which at the end of a block leaves that block to compute.
            more = self.draw.choice((self.draw.randint(1, 120), -len(conversation) % BLOCK))
            conversation += [self.draw.randrange(50_000) for _ in range(more)]
        for uid in self.fleet.load:
            self.fleet.load[uid] = self.load()
        asked = prompts(conversation)
        picked = self.fleet.pick(asked)
        uid, tokens = picked.candidate.uid, len(conversation)
        statuses = {worker.endpoint.uid: worker for worker in self.fleet.workers}
        (causes,) = MissCauses(self.fleet.index, self.ghosts, statuses.get).of(picked, asked)
        identity = self.fleet.identity[uid]
        hashes = chain(conversation, identity)
        others = {other for other in self.fleet.identity.values() if other != identity}
        cached, frame = self.caches[uid].serve(hashes, tokens)
        self.oracle.missed(
            uid,
            hashes,
            [chain(conversation, other) for other in others],
            prompt_tokens=tokens,
            cached_tokens=cached,
        )
        missed = missed_tokens(
            [causes], first_cached_tokens=cached, prompt_tokens=tokens, cached_tokens=cached
        )
        self.count.answered(tokens, cached, missed)
        self.tell(uid, frame)

    def load(self) -> LoadReport:
        queued = self.draw.choice((0, 0, 0, 2_000))
        return self.fleet.report(0.001, queued_uncached_tokens=queued)


@pytest.mark.parametrize("seed", range(3))
def test_causes_equal_those_of_the_full_log_of_events(seed: int) -> None:
    replay = Replay(seed, GhostList())

    for number in range(1_200):
        replay.request()
        if number % 60 == 59:
            replay.event()

    count, counted = (
        replay.count,
        {str(cause): tokens for cause, tokens in replay.count.missed_tokens.items()},
    )
    assert counted == {str(cause): replay.oracle.tokens[cause] for cause in MissCause}
    assert sum(counted.values()) == count.prompt_tokens - count.cached_tokens
    # Each cause was put to the test.
    assert all(tokens > 1_000 for tokens in counted.values()), counted


def test_a_list_that_overflows_makes_no_miss_one_of_capacity_or_of_a_lost_worker() -> None:
    replays = [Replay(7, GhostList(max_blocks)) for max_blocks in (PARTS, PARTS * 4, 1_000_000)]

    for replay in replays:
        for number in range(600):
            replay.request()
            if number % 60 == 59:
                replay.event()

    full = replays[-1].count.missed_tokens
    for small in (replay.count.missed_tokens for replay in replays[:-1]):
        assert small[MissCause.COMPULSORY] > full[MissCause.COMPULSORY]
        assert small[MissCause.PLACEMENT] == full[MissCause.PLACEMENT]
        assert small[MissCause.CAPACITY] < full[MissCause.CAPACITY]
        assert small[MissCause.LOST] < full[MissCause.LOST]
    assert all(len(replay.ghosts) <= bound for replay, bound in zip(replays, (256, 1024), strict=False))


def holders(held: int = 0, elsewhere: int = 0, *others: OtherIdentity) -> PromptHolders:
    return PromptHolders(chain(range(64)), BLOCK, held, elsewhere, others)


def test_what_was_held_when_the_worker_was_picked_and_not_when_it_was_matched_was_evicted() -> None:
    causes = prompt_causes(holders(held=3), lambda _: None, no_evictions, predicted_cached_tokens=48)

    missed = missed_tokens([causes], first_cached_tokens=16, prompt_tokens=70, cached_tokens=16)

    assert missed == MissTokens(capacity=32, compulsory=22)


def test_more_cached_than_was_known_is_no_miss() -> None:
    causes = prompt_causes(holders(elsewhere=4), lambda _: None, no_evictions, predicted_cached_tokens=0)

    assert missed_tokens([causes], first_cached_tokens=64, prompt_tokens=70, cached_tokens=64) == MissTokens(
        compulsory=6
    )


def test_the_other_revision_may_have_blocks_of_another_size() -> None:
    wide = OtherIdentity(chain(range(64), OTHER_IDENTITY), block_size_tokens=32, held_blocks=1)

    causes = prompt_causes(holders(0, 0, wide), lambda _: None, no_evictions, predicted_cached_tokens=0)

    assert causes.runs == (CauseRun(MissCause.ROLLOUT, 32), CauseRun(MissCause.COMPULSORY, 64))


def test_what_is_known_of_all_prompts_together_is_shared_out_as_it_was_predicted() -> None:
    first = PromptCauses(16, (CauseRun(MissCause.PLACEMENT, 64),))
    second = PromptCauses(32, (CauseRun(MissCause.LOST, 64),))

    missed = missed_tokens([first, second], first_cached_tokens=16, prompt_tokens=140, cached_tokens=48)

    assert missed == MissTokens(placement=48, lost=32, compulsory=12)


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens"), [(0, 0), (10, 0), (10, 500), (10**15, 0), (40, 16)]
)
def test_any_numbers_of_a_worker_give_as_many_missed_tokens_as_it_computed(
    prompt_tokens: int, cached_tokens: int
) -> None:
    causes = prompt_causes(
        holders(held=1, elsewhere=2), lambda _: MissCause.LOST, no_evictions, predicted_cached_tokens=16
    )

    missed = missed_tokens(
        [causes],
        first_cached_tokens=cached_tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )

    tokens = [getattr(missed, cause) for cause in MissCause]
    assert sum(tokens) == max(prompt_tokens - cached_tokens, 0)
    assert min(tokens) >= 0


@pytest.mark.parametrize(("is_ready", "cause"), [(True, MissCause.PLACEMENT), (False, MissCause.COMPULSORY)])
def test_a_ready_worker_that_could_not_be_picked_holds_blocks_all_the_same(
    is_ready: bool,
    cause: MissCause,
) -> None:
    fleet = PickerFleet("a", "b")
    fleet.store("a", chain(range(64)))
    if not is_ready:
        fleet.unready.add("a")
    asked = prompts([*range(64), 7])

    picked = fleet.pick(asked, excluded=["a"])
    statuses = {worker.endpoint.uid: worker for worker in fleet.workers}
    (causes,) = MissCauses(fleet.index, GhostList(), statuses.get).of(picked, asked)

    assert causes.runs == (CauseRun(cause, 64),)
