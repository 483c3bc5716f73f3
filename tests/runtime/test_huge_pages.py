"""Memory is moved into huge pages, where the kernel can, and stays what it was."""

import subprocess
import sys

import pytest

from warmfleet_runtime.huge_pages import HUGE_PAGE_BYTES, huge_page_ranges

MAPPINGS = """\
55d0c8a00000-55d0c8a21000 r-xp 00000000 fe:01 1311 /usr/bin/python3.11
55d0c9000000-55d0c9700000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f1000100000-7f1000500000 rw-p 00000000 00:00 0
7f2000000000-7f2000200000 r--p 00000000 00:00 0
7f3000000000-7f3000400000 rw-s 00000000 00:01 77 /dev/zero (deleted)
7f4000000000-7f4000400000 rw-p 00000000 fe:01 78 /usr/lib/lib with a space.so
7f5000000000-7f50001ff000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0 [stack]
"""

CHECK = """
from warmfleet_runtime.huge_pages import move_into_huge_pages

def huge_kib():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

objects = [str(number) for number in range(1_000_000)]
before = huge_kib()
moved_bytes = move_into_huge_pages()
assert moved_bytes % (2 * 1024 * 1024) == 0
assert all(text == str(number) for number, text in enumerate(objects))
print(moved_bytes // 1024, huge_kib() - before)
"""


def test_the_ranges_are_the_whole_huge_pages_of_private_memory_without_files_and_stacks() -> None:
    assert list(huge_page_ranges(MAPPINGS)) == [
        (0x55D0C9000000, 0x55D0C9600000),
        (0x7F0000000000, 0x7F0000400000),
        (0x7F1000200000, 0x7F1000400000),
    ]


def test_a_process_of_a_million_objects_keeps_them_and_has_them_in_huge_pages_where_the_kernel_can() -> None:
    found = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)

    moved_kib, more_kib = map(int, found.stdout.split())
    assert (moved_kib > 0) == (more_kib > 0)
    if moved_kib:
        assert more_kib * 1024 > 8 * HUGE_PAGE_BYTES


@pytest.mark.parametrize("mappings", ["", "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"])
def test_memory_without_a_whole_huge_page_has_no_range(mappings: str) -> None:
    assert list(huge_page_ranges(mappings)) == []
