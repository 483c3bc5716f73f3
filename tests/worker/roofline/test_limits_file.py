"""Limits are kept for the processors that they were measured on, and measured by one process at a time."""

import os

import msgspec

from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.roofline.limits_file import limits_name, machine_lock, read_limits, write_limits

LIMITS = MachineLimits(
    read_bytes_per_second=2e10,
    read_threads=2,
    buffer_bytes=2**31,
    bfloat16_flops_per_second=3e11,
    float32_flops_per_second=1e11,
)
CPU = "model name\t: Example CPU 9000\nflags\t\t: fpu avx2\n"


def test_limits_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "new" / "limits.json"

    write_limits(path, LIMITS)

    assert read_limits(path) == LIMITS


def test_what_cannot_be_read_or_is_damaged_counts_as_not_measured(tmp_path):
    path = tmp_path / "limits.json"
    assert read_limits(None) is None
    assert read_limits(path) is None

    for content in (b"", b"{", b'{"read_bytes_per_second": "fast"}', b"x" * 10_000):
        path.write_bytes(content)
        assert read_limits(path) is None
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(LIMITS, read_bytes_per_second=0.0)))
    assert read_limits(path) is None


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")

    write_limits(tmp_path / "file" / "limits.json", LIMITS)
    write_limits(None, LIMITS)


def test_other_processors_have_other_limits():
    names = {
        limits_name(CPU, 2),
        limits_name(CPU, 4),
        limits_name(CPU.replace("9000", "9001"), 2),
        limits_name(CPU.replace("avx2", "avx2 avx512_bf16"), 2),
    }

    assert len(names) == 4


def test_one_process_measures_at_a_time(tmp_path):
    with machine_lock(tmp_path, wait=False) as first, machine_lock(tmp_path, wait=False) as second:
        assert (first, second) == (True, False)
    with machine_lock(tmp_path, wait=False) as again:
        assert again


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "warmfleet-machine-limits.lock").symlink_to(tmp_path / "elsewhere")

    with machine_lock(tmp_path, wait=False) as held:
        assert not held
    assert not os.path.lexists(tmp_path / "elsewhere")


def test_each_limit_is_the_best_that_was_measured():
    lower = msgspec.structs.replace(LIMITS, read_bytes_per_second=1e10, read_threads=1)
    lower = msgspec.structs.replace(lower, float32_flops_per_second=2e11)

    assert lower.best(LIMITS) == msgspec.structs.replace(LIMITS, float32_flops_per_second=2e11)
