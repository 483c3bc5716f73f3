"""What happens in a local fleet, for its log and its terminal."""

import time
from collections.abc import Callable
from typing import Literal

import msgspec

EventKind = Literal[
    "Started",
    "ProcessReady",
    "FleetReady",
    "Unresponsive",
    "Restarting",
    "Scaled",
    "NotScaled",
    "HandedOver",
    "Removed",
    "Asleep",
    "StateUnsaved",
    "Stopping",
    "Stopped",
]


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """A change in the fleet."""

    kind: EventKind
    process: str = ""
    text: str
    unix_seconds: float = msgspec.field(default_factory=time.time)


Emit = Callable[[EventKind, str, str], None]
"""Called with a kind, a process's name or "", and a text."""
