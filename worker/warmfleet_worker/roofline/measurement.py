"""Measures the limits of a machine within a fixed time."""

import time
from collections.abc import Callable
from typing import Final, Literal, Protocol

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.engine.roofline import MachineLimits

SLICE_SECONDS: Final = 0.050
"""About the longest read or product that is timed."""
FILL_SECONDS: Final = 0.8
READ_SECONDS: Final = 0.6
PRODUCT_SECONDS: Final = 0.25
"""For each of the two element types."""
FILL_BYTES: Final = 32 * 2**20
MIN_BUFFER_BYTES: Final = 128 * 2**20
"""Less may stay in the last cache, and reads from there are no limit of the memory."""
MAX_BUFFER_BYTES: Final = 2 * 2**30
SMALLEST_PRODUCT: Final = 256
LARGEST_PRODUCT: Final = 2048

NO_TORCH: Final = "PyTorch, whose products are measured, is not installed"

Element = Literal["bfloat16", "float32"]


class NotMeasurable(WarmfleetError):  # noqa: N818 - named after what is wrong
    """The limits of this machine cannot be measured now; the text has the reason."""


class NeverMeasurable(NotMeasurable):
    """They cannot be measured later either."""


class Reader(Protocol):
    """Memory to read; `memory_reader.MemoryReader`, fakes in tests."""

    @property
    def size_bytes(self) -> int: ...
    def fill(self, offset: int, length: int, /) -> None: ...
    def read(self, offset: int, length: int, /, *, threads: int) -> None: ...


Multiply = Callable[[Element, int], None]
"""Multiplies two square matrices of that many rows."""


def measure(
    reader: Reader,
    multiply: Multiply,
    cores: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    fill_seconds: float = FILL_SECONDS,
) -> MachineLimits:
    """Measure for two seconds at most, in reads and products of about `SLICE_SECONDS`.

    One that takes far longer than the one before it may exceed the two seconds by itself; so do the first
    product of an element, and a longer time to fill the memory.

    Raises:
        NotMeasurable: too little memory could be filled within the time.
    """
    filled_bytes = _fill(reader, clock, fill_seconds)
    read_rate, read_threads = _best_read(reader, filled_bytes, thread_counts(cores), clock)
    return MachineLimits(
        read_bytes_per_second=read_rate,
        read_threads=read_threads,
        buffer_bytes=filled_bytes,
        bfloat16_flops_per_second=_best_product("bfloat16", multiply, clock),
        float32_flops_per_second=_best_product("float32", multiply, clock),
    )


def thread_counts(cores: int) -> list[int]:
    """Powers of two below `cores`, and `cores`: the most first, which is the best nearly everywhere."""
    return [cores, *sorted(1 << power for power in range(cores.bit_length()) if 1 << power < cores)[::-1]]


def _fill(reader: Reader, clock: Callable[[], float], fill_seconds: float) -> int:
    """Write the memory once, so that it exists; the bytes for which there was time."""
    filled_bytes, spent = 0, 0.0
    while filled_bytes + FILL_BYTES <= reader.size_bytes and spent < fill_seconds:
        started = clock()
        reader.fill(filled_bytes, FILL_BYTES)
        spent += clock() - started
        filled_bytes += FILL_BYTES
    if filled_bytes < MIN_BUFFER_BYTES:
        raise NotMeasurable(
            f"{filled_bytes >> 20} MiB of memory were free and could be filled within {fill_seconds:g} s; "
            f"{MIN_BUFFER_BYTES >> 20} MiB are needed"
        )
    return filled_bytes


def _best_read(
    reader: Reader, filled_bytes: int, counts: list[int], clock: Callable[[], float]
) -> tuple[float, int]:
    """Bytes per second, and the number of threads with which they were reached."""
    best_rate, best_threads, spent, offset = 0.0, counts[0], 0.0, 0
    length, longest = FILL_BYTES, 0.0
    attempt = 0
    while attempt < len(counts) or spent + longest < READ_SECONDS:
        if spent >= READ_SECONDS:
            break
        threads = counts[attempt % len(counts)]
        # Each read is of another region: the last cache holds none of it.
        offset = offset if offset + length <= filled_bytes else 0
        started = clock()
        reader.read(offset, length, threads=threads)
        seconds = clock() - started
        spent, longest, offset = spent + seconds, max(longest, seconds), offset + length
        if seconds > 0 and length / seconds > best_rate:
            best_rate, best_threads = length / seconds, threads
        if seconds < SLICE_SECONDS / 2:
            length = min(2 * length, filled_bytes)
        attempt += 1
    return best_rate, best_threads


def _best_product(element: Element, multiply: Multiply, clock: Callable[[], float]) -> float:
    """Products and sums per second, of matrices as large as a slice allows.

    The first product of an element is not timed: it starts threads and compiles what computes the others,
    which can take longer than there is time for all.
    """
    multiply(element, SMALLEST_PRODUCT)
    best_rate, spent, rows, longest = 0.0, 0.0, SMALLEST_PRODUCT, 0.0
    while spent + longest < PRODUCT_SECONDS:
        started = clock()
        multiply(element, rows)
        seconds = clock() - started
        spent += seconds
        if seconds > 0:
            best_rate = max(best_rate, 2 * rows**3 / seconds)
        # Twice the rows take eight times as long.
        if rows < LARGEST_PRODUCT and 8 * seconds < SLICE_SECONDS:
            rows, longest = 2 * rows, 8 * seconds
        else:
            longest = max(longest, seconds)
    return best_rate
