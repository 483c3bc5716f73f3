"""Prints the limits of this machine as JSON, and keeps them for the workers here.

python -m warmfleet_worker.roofline
"""

import sys

import msgspec

from warmfleet_worker.roofline.measure_now import measure_now
from warmfleet_worker.roofline.measurement import NotMeasurable


def main() -> int:
    """0; 1 with the reason where they cannot be measured."""
    try:
        limits = measure_now()
    except NotMeasurable as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{msgspec.json.encode(limits).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
