"""Prints the limits of this machine as JSON, and keeps them for the workers here if nothing else ran.

python -m warmfleet_worker.roofline [--only-if-idle] [--fill-seconds SECONDS]
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_runtime.processors import IDLE_BUSY_RATIO
from warmfleet_worker.roofline.measure_now import measure_now
from warmfleet_worker.roofline.measurement import FILL_SECONDS, NotMeasurable

_OUT_OF_MEMORY_SCORE: Final = Path("/proc/self/oom_score_adj")


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 with the reason where they cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m warmfleet_worker.roofline")
    parser.add_argument(
        "--only-if-idle",
        action="store_true",
        help="fail where another process measures or works meanwhile",
    )
    parser.add_argument(
        "--fill-seconds",
        type=float,
        default=FILL_SECONDS,
        help="for the memory that is read (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    only_if_idle = options.only_if_idle
    if only_if_idle:
        with suppress(OSError):  # without memory the kernel ends this process, and not an engine
            _OUT_OF_MEMORY_SCORE.write_text("1000", encoding="ascii")
    try:
        limits, others_ratio = measure_now(wait=not only_if_idle, fill_seconds=options.fill_seconds)
    except NotMeasurable as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if others_ratio > IDLE_BUSY_RATIO:
        sys.stderr.write(f"not kept: other processes used {others_ratio:.0%} of the cores meanwhile\n")
        if only_if_idle:
            return 1
    sys.stdout.write(f"{msgspec.json.encode(limits).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
