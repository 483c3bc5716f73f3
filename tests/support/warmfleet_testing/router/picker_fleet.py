"""A fleet whose workers are changed by hand, with the picker over it; no sockets."""

import time
from collections.abc import Callable, Sequence

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.kv_events import Frame, Hello, LoadReport, StepTimeFit
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import PickedWorker, Picker
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.event_stream import StreamCounts
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_testing.engine.digests import digest_of

IDENTITY = b"identity-of-16by"
OTHER_IDENTITY = b"another-identity"
BLOCK = 16


def chain(tokens: Sequence[int], identity: bytes = IDENTITY) -> list[BlockHash]:
    return block_hashes(block_root(CacheIdentity(identity), salt=b"salt"), tokens, BLOCK)


def prompts(
    *token_lists: Sequence[int], digest: str = "t", choices: int = 1, may_read_cache: bool = True
) -> RequestPrompts:
    return RequestPrompts(
        encoded={digest: [list(tokens) for tokens in token_lists]},
        salt=b"salt",
        hash_memory=BlockHashMemory(),
        body_bytes=1000,
        head=b"head",
        count=len(token_lists),
        choices=choices,
        may_read_cache=may_read_cache,
    )


class PickerFleet:
    """Index, leases, breakers and picker of one router, over workers that a test changes."""

    def __init__(
        self,
        *uids: str,
        policy: str = "LowestCost",
        per_token_seconds: float = 0.001,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = PrefixIndex()
        self.leases = Leases("router", now)
        self.breakers = Breakers(now=now)
        self.picker = Picker(self.index, self.leases, policy, self.breakers)
        self.identity = dict.fromkeys(uids, IDENTITY)
        self.load = {uid: self.report(per_token_seconds) for uid in uids}
        self.unready: set[str] = set()
        self.held: dict[str, list[BlockHash]] = {uid: [] for uid in uids}
        for uid in uids:
            self.index.connected(uid, "e")
            self.index.apply(uid, Frame(epoch="e", seq=0, snapshot_left=0))
            self.leases.frame_arrived(uid, Frame(epoch="e", seq=0, load=self.load[uid]))

    @staticmethod
    def report(per_token_seconds: float, **fields: int) -> LoadReport:
        step_time = StepTimeFit(per_prefill_token_seconds=per_token_seconds, samples=100)
        return LoadReport(step_time=step_time, max_running_sequences=64, total_blocks=10_000, **fields)  # type: ignore[arg-type]  # integer fields only

    def store(self, uid: str, hashes: Sequence[BlockHash]) -> None:
        self.held[uid] += hashes
        position = self.index.position(uid)
        assert position is not None
        digest = digest_of(self.held[uid])
        frame = Frame(epoch="e", seq=position[1] + 1, stored=list(hashes), digest=digest)
        self.leases.frame_arrived(uid, frame)
        self.index.apply(uid, frame)

    @property
    def workers(self) -> list[WorkerStatus]:
        return [
            WorkerStatus(
                endpoint=Endpoint(uid=uid, name=f"pod-{uid}", url="http://127.0.0.1:1"),
                hello=Hello(
                    uid=uid,
                    identity=self.identity[uid],
                    block_size_tokens=BLOCK,
                    window_tokens=0,
                    epoch="e",
                    served_names=["m"],
                    tokenizer_digest="t",
                    max_model_length_tokens=100_000,
                    proof=b"",
                ),
                ready=uid not in self.unready,
                unready_reason="",
                precise=self.index.is_precise(uid),
                load=self.load[uid],
                reported_at=None,
                resident_blocks=0,
                counts=StreamCounts(),
            )
            for uid in self.load
        ]

    def pick(self, asked: RequestPrompts, *, excluded: Sequence[str] = ()) -> PickedWorker:
        choice = self.picker.pick(self.workers, asked, excluded=excluded)
        assert choice is not None
        return choice
