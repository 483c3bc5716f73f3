"""File descriptors: as many as the connections need, or as many connections as there are descriptors.

A distribution's usual limit is 1,024 open files, of which a program may take more for itself (up to the hard
limit). A server that does not, and runs out of them, cannot even accept a connection to refuse it.
"""

import resource
from typing import Final

import structlog

RESERVED_DESCRIPTORS: Final = 128
"""For everything that is no client's: files, event loop, event streams, listener, engine."""

_log = structlog.get_logger("warmfleet.http")


def connections_that_fit(wanted: int, *, descriptors_each: int) -> int:
    """How many of `wanted` client connections can be held; raises this process's limit as far as they need.

    Fewer than wanted are a warning. `descriptors_each` counts what is opened on behalf of a connection, too.
    """
    limit = _raise_limit(RESERVED_DESCRIPTORS + wanted * descriptors_each)
    connections = fitting(wanted, limit, descriptors_each)
    if connections < wanted:
        _log.warning(
            "fewer connections than asked for: not enough open files are allowed",
            asked=wanted,
            connections=connections,
            open_files=limit,
            needed=RESERVED_DESCRIPTORS + wanted * descriptors_each,
            advice="raise the hard limit (`ulimit -Hn`, LimitNOFILE=, --ulimit nofile=) "
            "or lower --max-connections",
        )
    return connections


def fitting(wanted: int, limit: int, descriptors_each: int) -> int:
    """Connections that leave the reserve of `limit` descriptors alone; of a small limit, half is reserve."""
    reserved = min(RESERVED_DESCRIPTORS, limit // 2)
    return max(min(wanted, (limit - reserved) // descriptors_each), 1)


def _raise_limit(needed: int) -> int:
    """The descriptors that this process may have, raised towards `needed` if they are fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed if soft == resource.RLIM_INFINITY else soft
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # some systems have another bound below the hard limit
        return soft
    return raised
