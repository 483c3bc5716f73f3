"""Where a server listens."""

import json
import socket

import pytest

from warmfleet_contracts.http.listener import bind, listen


def test_a_listener_says_where_it_is_on_one_line(capsys):
    listener = listen("127.0.0.1", 0, "w-1")

    assert listener is not None
    with listener:
        assert json.loads(capsys.readouterr().out) == {
            "event": "listening",
            "host": "127.0.0.1",
            "port": listener.getsockname()[1],
            "uid": "w-1",
        }


def test_a_busy_port_is_refused_and_announced_to_nobody(capsys):
    with bind("127.0.0.1", 0) as taken:
        assert listen("127.0.0.1", taken.getsockname()[1], "w-1") is None

    assert "listening" not in capsys.readouterr().out


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_accepted_connection_does_not_wait_for_acknowledgements(host):
    with bind(host, 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
