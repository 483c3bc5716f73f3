"""A measurement by a process of its own: an engine has no use for torch, whose import takes seconds."""

import subprocess
import sys
from typing import Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.roofline.measurement import Measurement, NotMeasurable

_WAIT_SECONDS: Final = 0.020
"""Between two looks at the process; a request that comes meanwhile waits for so long."""


def measured_by_a_process() -> Measurement:
    """The slices of a measurement by `python -m` this room; closed before its end, it kills the process.

    Raises:
        NotMeasurable: other processes ran meanwhile, or the process failed; the text is what it wrote.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "warmfleet_worker.roofline", "--only-if-idle"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:  # at the end it waits for the process, and closes what was opened for it
        try:
            yield
            while True:
                # Both are far smaller than a pipe's buffer.
                try:
                    written, complaint = process.communicate(timeout=_WAIT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    yield
        finally:
            process.kill()
    if process.returncode:
        raise NotMeasurable(complaint.decode(errors="replace").strip() or f"exit code {process.returncode}")
    try:
        return msgspec.json.decode(written, type=MachineLimits)
    except UNDECODABLE as error:
        raise NotMeasurable(f"the process that measures wrote something else: {error}") from error
