"""What a router does with the frames of an event stream, in a few lines."""

from warmfleet_contracts.cache.kv_events import Frame, MessageReader
from warmfleet_contracts.cache.resident import ResidentSet, SnapshotAssembly


class Follower:
    """Feed it the bytes of a stream without its hello; `resident` is the set that they describe."""

    def __init__(self) -> None:
        self.resident: ResidentSet | None = None
        self.frames: list[Frame] = []
        self._assembly: SnapshotAssembly[ResidentSet] | None = None
        self._reader = MessageReader()

    def feed(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            assert isinstance(frame, Frame)
            self.frames.append(frame)
            if frame.snapshot_left is not None:
                self._assembly = self._assembly or SnapshotAssembly(frame, ResidentSet)
                complete = self._assembly.add(frame)
                if complete is not None:
                    self.resident, self._assembly = complete, None
            else:
                assert self.resident is not None
                self.resident.apply(frame)
