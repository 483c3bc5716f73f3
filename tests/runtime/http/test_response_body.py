"""Parts of a body are written in the step that has them, as far as the client takes them."""

from dataclasses import dataclass, field

from warmfleet_runtime.http.response_body import ResponseBody


@dataclass
class Connection:
    """Transport and flow control in one."""

    write_paused: bool = False
    closing: bool = False
    written: list[bytes] = field(default_factory=list)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written.append(data)


def test_a_part_is_one_write_of_one_chunk() -> None:
    connection = Connection()

    assert ResponseBody(connection, connection).write(b"x" * 20)

    assert connection.written == [b"14\r\n" + b"x" * 20 + b"\r\n"]


def test_nothing_is_written_while_the_client_takes_nothing_and_the_writer_learns_of_the_end_once() -> None:
    connection, ready = Connection(write_paused=True), []
    body = ResponseBody(connection, connection)

    assert not body.write(b"x")
    body.when_writable(lambda: ready.append(body.write(b"x")))
    connection.write_paused = False
    body.writable()
    body.writable()

    assert ready == [True]
    assert len(connection.written) == 1


def test_a_writer_that_has_ended_is_not_called() -> None:
    body = ResponseBody(Connection(), Connection())
    body.when_writable(lambda: 1 / 0)
    body.when_writable(None)

    body.writable()


def test_to_a_client_that_has_left_nothing_is_written() -> None:
    connection = Connection(closing=True)

    assert ResponseBody(connection, connection).write(b"x")

    assert connection.written == []
