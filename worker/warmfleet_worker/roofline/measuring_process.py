"""A measurement by a process of its own: an engine has no use for torch, whose import takes seconds."""

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_runtime.die_with_parent import bound_command
from warmfleet_runtime.memory import available_memory_bytes
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.pytorch import is_torch_installed
from warmfleet_worker.roofline.measurement import MIN_BUFFER_BYTES, NO_TORCH, NeverMeasurable, NotMeasurable

Measurement = Generator[None, None, MachineLimits]
"""Looks at a process that measures, and at their end its result. Closing it ends the process."""

LONGEST_SECONDS: Final = 60.0
"""Of the process: it takes about five."""
LIBRARIES_BYTES: Final = 384 * 2**20
"""What the process takes besides its buffer: 291 MiB with torch, and some."""
_WAIT_SECONDS: Final = 0.020
"""Between two looks at the process; a request that comes meanwhile waits for so long."""
_END_SECONDS: Final = 0.5
"""For a process that was killed. One that waits for a disk is left to itself, and ends afterwards."""


def measured_by_a_process() -> Measurement:
    """Measure by `python -m` this room, looking at the process again and again.

    Raises:
        NeverMeasurable: torch is not installed.
        NotMeasurable: too little memory is free; other processes ran meanwhile; or the process failed: the
            text is what it wrote.
    """
    if not is_torch_installed():
        raise NeverMeasurable(NO_TORCH)
    # The engine shares its memory limit with the process, and is the larger one of the two.
    if (available_memory_bytes() or 0) < LIBRARIES_BYTES + 2 * MIN_BUFFER_BYTES:
        raise NotMeasurable("too little memory is free for a process that measures")
    # Bound to this process from its first moment on, not once it has imported its libraries.
    command = bound_command([sys.executable, "-m", "warmfleet_worker.roofline", "--only-if-idle"])
    process = subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield
        written, complaint = yield from _output(process)
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_SECONDS)
    if process.returncode:
        reason = complaint.decode(errors="replace").strip().removeprefix("error: ")
        raise NotMeasurable(reason or f"exit code {process.returncode}")
    try:
        return msgspec.json.decode(written, type=MachineLimits)
    except UNDECODABLE as error:
        raise NotMeasurable(f"the process that measures wrote something else: {error}") from error


def _output(process: "subprocess.Popen[bytes]") -> Generator[None, None, tuple[bytes, bytes]]:
    """What it wrote until it ended."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        try:
            return process.communicate(timeout=_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            yield
    raise NotMeasurable(f"the process that measures takes longer than {LONGEST_SECONDS:.0f} s")
