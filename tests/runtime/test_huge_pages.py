"""Memory is moved into huge pages, where the kernel can, and stays what it was."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmfleet_runtime.huge_pages import HUGE_PAGE_BYTES, huge_page_ranges

MAPPINGS = b"""\
55d0c8a00000-55d0c8a21000 r-xp 00000000 fe:01 1311 /usr/bin/python3.11
55d0c9000000-55d0c9700000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f1000100000-7f1000500000 rw-p 00000000 00:00 0
7f2000000000-7f2000200000 r--p 00000000 00:00 0
7f3000000000-7f3000400000 rw-s 00000000 00:01 77 /dev/zero (deleted)
7f4000000000-7f4000400000 rw-p 00000000 fe:01 78 /usr/lib/lib with a space.so
7f4100000000-7f4100400000 rw-p 00000000 fe:01 79 /home/jos\xe9/a\xe2\x80\xa8b\x0c\x1c\xc2\x85.so
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
move_into_huge_pages()
assert all(text == str(number) for number, text in enumerate(objects))
print(huge_kib() - before)
"""

OF_AN_ODD_NAME = """
import mmap, sys
with open(sys.argv[1].encode("utf-8", "surrogateescape"), "r+b") as file:
    mapping = mmap.mmap(file.fileno(), 4096)
from warmfleet_runtime.huge_pages import move_into_huge_pages
move_into_huge_pages()
"""


def kernel_moves() -> bool:
    """Whether it moves memory that is wholly used: Linux from 6.1 on, where no container forbids it."""
    if sys.platform != "linux":
        return False
    with mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE) as mapping:
        mapping.write(bytes(len(mapping)))
        used = ctypes.c_char.from_buffer(mapping)
        first = -(-ctypes.addressof(used) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        del used
        return ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(HUGE_PAGE_BYTES), 25) == 0


def test_the_ranges_are_the_whole_huge_pages_of_private_memory_without_files_and_the_stack() -> None:
    assert list(huge_page_ranges(MAPPINGS)) == [
        (0x55D0C9000000, 0x55D0C9600000),
        (0x7F0000000000, 0x7F0000400000),
        (0x7F1000200000, 0x7F1000400000),
    ]


def test_a_process_of_a_million_objects_keeps_them_and_has_them_in_huge_pages_where_the_kernel_can() -> None:
    found = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)

    more_bytes = int(found.stdout) * 1024
    if kernel_moves():
        # A million strings of 55 bytes fill 26 of them.
        assert more_bytes > 8 * HUGE_PAGE_BYTES
    else:
        assert not more_bytes


def test_a_mapped_file_may_have_any_name(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/jos\xe9 a\xe2\x80\xa8b\x0c\x1c"
    with open(path, "wb") as file:  # noqa: PTH123 - a Path has no name of any bytes
        file.write(bytes(4096))

    subprocess.run([sys.executable, "-c", OF_AN_ODD_NAME, path], check=True)


@pytest.mark.parametrize("mappings", [b"", b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n", b"cut"])
def test_memory_without_a_whole_huge_page_has_no_range(mappings: bytes) -> None:
    assert list(huge_page_ranges(mappings)) == []
