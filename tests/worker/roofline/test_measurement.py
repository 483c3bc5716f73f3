"""What is measured, and that it takes no longer than it may, on a machine of any speed."""

import itertools

import pytest

from warmfleet_worker.roofline.measurement import (
    FILL_BYTES,
    MAX_BUFFER_BYTES,
    SLICE_SECONDS,
    NotMeasurable,
    measure,
    thread_counts,
)
from warmfleet_worker.roofline.memory_reader import MemoryReader
from warmfleet_worker.roofline.products import Products


class Machine:
    """A machine by its rates, with a clock that only its work moves."""

    def __init__(self, *, read_rate=2e10, fill_rate=5e9, flops=3e11, size_bytes=MAX_BUFFER_BYTES):
        self.seconds = self.longest = 0.0
        self.size_bytes = size_bytes
        self.reads = []
        self._read_rate, self._fill_rate, self._flops = read_rate, fill_rate, flops

    def clock(self):
        return self.seconds

    def fill(self, _offset, length):
        self._work(length / self._fill_rate)

    def read(self, offset, length, *, threads):
        assert offset + length <= self.size_bytes
        self.reads.append((offset, length, threads))
        self._work(length / self._read_rate / min(threads, 4))

    def multiply(self, element, rows):
        self._work(2 * rows**3 / (self._flops if element == "bfloat16" else self._flops / 2))

    def _work(self, seconds):
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


def finish(machine, cores=8, **options):
    return measure(machine, machine.multiply, cores, machine.clock, **options)


def test_the_limits_are_the_best_rates_of_any_number_of_threads():
    machine = Machine()

    limits = finish(machine)

    assert limits.read_bytes_per_second == pytest.approx(8e10)
    assert limits.read_threads in (4, 8)
    assert limits.buffer_bytes == MAX_BUFFER_BYTES
    assert limits.bfloat16_flops_per_second == pytest.approx(3e11)
    assert limits.float32_flops_per_second == pytest.approx(1.5e11)
    assert {threads for _, _, threads in machine.reads} == {1, 2, 4, 8}


def test_what_the_first_product_of_an_element_takes_to_start_is_no_limit_of_the_machine():
    machine = Machine()
    started = set()

    def multiply(element, rows):
        if element not in started:
            started.add(element)
            machine.seconds += 0.5
        machine.multiply(element, rows)

    limits = measure(machine, multiply, 8, machine.clock)

    assert limits.bfloat16_flops_per_second == pytest.approx(3e11)
    assert limits.float32_flops_per_second == pytest.approx(1.5e11)


def test_consecutive_reads_are_of_other_memory():
    machine = Machine()

    finish(machine)

    for (first, length, _), (second, _, _) in itertools.pairwise(machine.reads):
        assert second >= first + length or second == 0
    assert max(first for first, _, _ in machine.reads) >= 16 * FILL_BYTES


@pytest.mark.parametrize("read_rate", [1e9, 2e10, 1e12])
@pytest.mark.parametrize("flops", [1e10, 3e11, 1e14])
@pytest.mark.parametrize("fill_rate", [4e8, 1e10])
def test_it_takes_two_seconds_at_most_in_short_reads_and_products(read_rate, flops, fill_rate):
    machine = Machine(read_rate=read_rate, fill_rate=fill_rate, flops=flops)

    finish(machine)

    assert machine.seconds < 2.0
    assert machine.longest < 3 * SLICE_SECONDS


def test_who_may_wait_measures_all_the_memory_of_a_machine_that_is_slow_to_give_it():
    in_time, in_full = (finish(Machine(fill_rate=4e8), **options) for options in ({}, {"fill_seconds": 30}))

    assert in_time.buffer_bytes < MAX_BUFFER_BYTES / 4
    assert in_full.buffer_bytes == MAX_BUFFER_BYTES


@pytest.mark.parametrize("lack", [{"size_bytes": 3 * FILL_BYTES}, {"fill_rate": 5e7}])
def test_too_little_memory_is_an_error_with_its_size(lack):
    with pytest.raises(NotMeasurable, match="MiB of memory were free"):
        finish(Machine(**lack))


def test_thread_counts_are_the_cores_then_powers_of_two():
    assert [thread_counts(cores) for cores in (1, 2, 6, 8)] == [
        [1],
        [2, 1],
        [6, 4, 2, 1],
        [8, 4, 2, 1],
    ]


def test_real_memory_and_real_products_are_read_and_multiplied():
    cores = 2
    multiply = Products(cores)

    with MemoryReader(FILL_BYTES, cores=cores) as reader:
        reader.fill(0, FILL_BYTES)
        for threads in (1, 2):
            reader.read(0, FILL_BYTES, threads=threads)
    for element in ("bfloat16", "float32"):
        multiply(element, 64)
