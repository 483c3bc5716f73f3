"""RFC 3339 times of the API server."""

from datetime import UTC, datetime


def seconds_of(time: str | None) -> float:
    """Seconds since the epoch; 0 for None or an empty text."""
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def time_of(seconds: float) -> str:
    """Whole seconds, as in conditions: `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_time_of(seconds: float) -> str:
    """Microseconds, as in events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
