"""A worker's side of the event stream, modelled with a plain set: the oracle for what a router may know.

It keeps the set at every position it ever had, and shares no code with `ResidentSet`.
"""

import random
from collections.abc import Sequence

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import Frame, Hello, LoadReport, Message, ResidentDigest, hello_proof
from warmfleet_testing.engine.digests import digest_of

IDENTITY = b"modelled-worker!"
ENGINE_BLOCKS = 4096


def hash_of(number: int) -> BlockHash:
    return BlockHash((0x9E3779B97F4A7C15 * (number + 1) % 2**128).to_bytes(16, "little"))


class ModelledWorker:
    """Emits frames like a worker's server: one per change, with a bounded replay buffer."""

    def __init__(
        self, uid: str, *, token: bytes = b"", replay_frames: int = 4, chunk_hashes: int = 3
    ) -> None:
        self.uid = uid
        self.token = token
        self.replay_frames = replay_frames
        self.chunk_hashes = chunk_hashes
        self.lives = 0
        self.load = LoadReport(total_blocks=ENGINE_BLOCKS, max_running_sequences=8)
        self.history: dict[tuple[str, int], frozenset[BlockHash]] = {}
        self.restart()

    def restart(self) -> None:
        self.lives += 1
        self.epoch = f"{self.uid}-life-{self.lives}"
        self.seq = 0
        self.held: set[BlockHash] = set()
        self.replay: list[Frame] = []
        self.history[self.epoch, 0] = frozenset()

    @property
    def digest(self) -> ResidentDigest:
        return digest_of(self.held)

    def change(
        self, *, stored: Sequence[BlockHash] = (), removed: Sequence[BlockHash] = (), cleared: bool = False
    ) -> Frame:
        if cleared:
            self.held = set()
        self.held |= set(stored)
        self.held -= set(removed)
        self.seq += 1
        self.history[self.epoch, self.seq] = frozenset(self.held)
        frame = Frame(
            epoch=self.epoch,
            seq=self.seq,
            stored=list(stored),
            removed=list(removed),
            cleared=cleared,
            digest=self.digest,
        )
        self.replay = [*self.replay, frame][-self.replay_frames :]
        return frame

    def load_frame(self) -> Frame:
        return Frame(epoch=self.epoch, seq=self.seq, load=self.load, digest=self.digest)

    def hello(self, nonce: bytes, **changes: object) -> Hello:
        fields: dict[str, object] = {
            "uid": self.uid,
            "identity": IDENTITY,
            "block_size_tokens": 16,
            "window_tokens": 0,
            "epoch": self.epoch,
            "served_names": ["model-a"],
            "tokenizer_digest": "00",
            "max_model_length_tokens": 2048,
            "proof": hello_proof(self.token, nonce=nonce, uid=self.uid, identity=IDENTITY)
            if self.token
            else b"",
        }
        return Hello(**{**fields, **changes})  # type: ignore[arg-type]  # test helper: any field may be wrong

    def answer(self, epoch: str, after: int, nonce: bytes) -> list[Message]:
        """What a new subscriber gets before live frames: hello, then a replay or a snapshot, then load."""
        missed = [frame for frame in self.replay if frame.seq > after]
        if epoch == self.epoch and after <= self.seq and len(missed) == self.seq - after:
            return [self.hello(nonce), *missed, self.load_frame()]
        return [self.hello(nonce), *self.snapshot(), self.load_frame()]

    def snapshot(self) -> list[Frame]:
        hashes = sorted(self.held, key=lambda h: random.Random(h).random())
        parts = [hashes[i : i + self.chunk_hashes] for i in range(0, len(hashes), self.chunk_hashes)] or [[]]
        return [
            Frame(
                epoch=self.epoch,
                seq=self.seq,
                stored=list(part),
                snapshot_left=len(parts) - 1 - number,
                digest=self.digest,
            )
            for number, part in enumerate(parts)
        ]
