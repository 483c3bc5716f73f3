"""What goes wrong with a stub worker."""

from dataclasses import dataclass, field

from warmfleet_contracts.openai import RequestError


@dataclass
class Faults:
    """Switches, all off at first; they may be changed while the worker runs."""

    refuse_status: int = 0
    """Answer with this status."""
    close_before_headers: bool = False
    close_before_first_byte: bool = False
    die_after_events: int | None = None
    """Close the connection after this many events, in the middle of the next one."""
    error_after_events: int | None = None
    """End the stream, whole, with `error` after this many events."""
    error: RequestError = field(
        default_factory=lambda: RequestError("no", status=500, type="server_error", code="engine_error")
    )
    hold_headers: bool = False
    """Never answer."""
    hold_after_events: int | None = None
    """Send nothing more after this many events."""
    silent_events: bool = False
    """Send no frame on the event stream."""
    hold_snapshot: bool = False
    """Send a hello and nothing after it, for as long as this lasts."""
    pings: int = 0
    """Comments before a stream's first event."""
    close_after_pings: bool = False
    not_ready_after_pings: bool = False
    """End the stream as a worker whose engine is gone."""
    first_byte_delay_seconds: float = 0.0
    """Late, and not to be seen in any report."""
    wrong_last_block: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    """What the headers of its answers hold instead."""
    fatal: bytes = b""
    """The worker ends, as if killed, when it gets a request with this in its body."""
