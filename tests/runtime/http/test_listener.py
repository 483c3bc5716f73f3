"""What accepted connections inherit from the socket that listens."""

import socket
from contextlib import closing

from warmfleet_runtime.http.listener import UNSENT_BYTES, UNTAKEN_SECONDS, bind


def test_an_accepted_connection_waits_neither_for_acknowledgements_nor_for_peers_that_are_gone():
    with closing(bind("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            of = {
                name: accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_NODELAY", "TCP_NOTSENT_LOWAT", "TCP_USER_TIMEOUT")
            }

    assert of["TCP_NODELAY"]
    assert of["TCP_NOTSENT_LOWAT"] == UNSENT_BYTES
    assert of["TCP_USER_TIMEOUT"] == UNTAKEN_SECONDS * 1000
