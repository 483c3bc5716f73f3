"""Reads as many bytes as a step has to, and computes nothing: a limit that takes its turns with the engines.

python -m warmfleet_cli.bench.engine.reads_program BYTES_OF_CASES THREADS BUFFER_BYTES

A machine that is shared with others reads faster at one moment than at the next. Limits from before and
after a run are its best moments; what this took is what memory gave while the engines took their steps.
"""

import json
import sys
from collections.abc import Mapping
from typing import Final

from warmfleet_cli.bench.engine.case_loop import CaseEngine, serve
from warmfleet_cli.bench.engine.cases import Case
from warmfleet_worker.roofline.measurement import MIN_BUFFER_BYTES, NotMeasurable
from warmfleet_worker.roofline.memory_reader import MemoryReader, free_buffer_bytes


class ReadsEngine:
    """Reads through a buffer that no cache holds; each step goes on where the last one ended."""

    dtype: Final = "no products"

    def __init__(self, bytes_of_cases: Mapping[str, int], threads: int, buffer_bytes: int) -> None:
        """`bytes_of_cases`: by name, what a step of a case reads.

        Raises:
            NotMeasurable: too little memory is free.
        """
        size_bytes = min(buffer_bytes, free_buffer_bytes())
        if size_bytes < MIN_BUFFER_BYTES:
            raise NotMeasurable(f"{size_bytes >> 20} MiB of memory are free for reads: too little")
        self.name = f"{size_bytes / 2**30:.2g} GiB of memory"
        self.variants = [str(threads)]
        self._bytes_of_cases = bytes_of_cases
        self._reader = MemoryReader(size_bytes, cores=threads)
        self._reader.fill(0, size_bytes)
        self._threads = threads
        self._offset = 0

    def prepare(self, case: Case, variant: str) -> None:
        """There are no contexts."""

    def step(self, case: Case, index: int) -> list[int]:
        """Read; there is no token."""
        del index
        left = self._bytes_of_cases[case.name]
        while left:
            if self._offset >= self._reader.size_bytes:
                self._offset = 0
            length = min(left, self._reader.size_bytes - self._offset)
            self._reader.read(self._offset, length, threads=self._threads)
            self._offset += length
            left -= length
        return []

    def reset(self, case: Case) -> None:
        """Nothing was added."""


def main() -> int:
    """Answer until standard input ends."""

    def make() -> CaseEngine:
        return ReadsEngine(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

    return serve(make)


if __name__ == "__main__":
    sys.exit(main())
