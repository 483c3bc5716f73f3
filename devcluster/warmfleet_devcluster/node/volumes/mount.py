"""One bind mount of a container."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine (`source`) that a container sees at `target`, both absolute paths."""

    source: str
    target: str
    read_only: bool
