"""Prints the limits of this machine as JSON, and keeps them for the workers here if nothing else ran.

python -m warmfleet_worker.roofline
"""

import sys

import msgspec

from warmfleet_runtime.processors import IDLE_BUSY_RATIO
from warmfleet_worker.roofline.measure_now import measure_now
from warmfleet_worker.roofline.measurement import NotMeasurable


def main() -> int:
    """0; 1 with the reason where they cannot be measured."""
    try:
        limits, others_ratio = measure_now()
    except NotMeasurable as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if others_ratio > IDLE_BUSY_RATIO:
        sys.stderr.write(f"not kept: other processes used {others_ratio:.0%} of the cores meanwhile\n")
    sys.stdout.write(f"{msgspec.json.encode(limits).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
