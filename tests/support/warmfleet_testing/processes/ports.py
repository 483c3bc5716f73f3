"""Ports for processes that get theirs before they start."""

import random
import socket
from typing import Final

FIRST_PORT: Final = 20_000
END_PORT: Final = 30_000
"""Below what the kernel gives to outgoing connections and to binds of port 0: between the check and the
listening, something else on this machine would take one of those."""


def free_port_range(count: int) -> int:
    """First of `count` consecutive ports without a listener."""
    draw = random.SystemRandom()  # test processes that begin alike must not choose alike
    while True:
        first = draw.randrange(FIRST_PORT, END_PORT - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
