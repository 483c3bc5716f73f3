"""Times as Kubernetes writes them."""

import time
from datetime import UTC, datetime


def rfc3339() -> str:
    """Now, in whole seconds: `2026-01-31T10:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro() -> str:
    """Now, in microseconds, as Leases want it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def rfc3339_nano() -> str:
    """Now, in nanoseconds, as log files have it."""
    seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{nanos:09d}Z"
