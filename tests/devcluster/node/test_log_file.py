"""A container's log: every line with its time, whole again for the reader, bounded on disk."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.container.log_file import (
    LogOptions,
    LogReader,
    LogWriter,
    log_tail,
    present,
    read_entries,
)
from warmfleet_devcluster.node.kubelet_api.container_logs import log_options


def read(path, **options):
    return b"".join(present(entry, LogOptions(**options)) for entry in read_entries(path))


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_what_was_written_in_any_pieces_reads_back_as_it_was(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("log") / "0.log"
    log = LogWriter(path)
    for piece in pieces:
        log.write("stdout", piece)
    log.close()
    whole = b"".join(pieces)
    assert read(path) == (whole if whole.endswith(b"\n") or not whole else whole + b"\n")


def test_a_line_without_end_is_kept_in_parts_and_reads_as_one(tmp_path):
    log = LogWriter(tmp_path / "0.log")
    for _ in range(100):
        log.write("stderr", b"x" * 1000)
    log.close()
    assert read(tmp_path / "0.log") == b"x" * 100_000 + b"\n"


def test_a_log_keeps_at_most_two_files_of_its_limit(tmp_path):
    path = tmp_path / "0.log"
    log = LogWriter(path, max_bytes=2000)
    for number in range(1000):
        log.write("stdout", b"line %d\n" % number)
    log.close()
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 2000
    assert read(path).endswith(b"line 998\nline 999\n")


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_a_reader_that_follows_sees_every_line_once_across_rotations(tmp_path_factory, bursts):
    path = tmp_path_factory.mktemp("log") / "0.log"
    log = LogWriter(path, max_bytes=1000)
    written, seen = 0, b""
    with LogReader(path) as reader:
        for lines in bursts:
            for _ in range(lines):  # of about 45 bytes: fewer than two files' worth
                log.write("stdout", b"line %d\n" % written)
                written += 1
            seen += b"".join(present(entry, LogOptions()) for entry in reader.read())
    log.close()
    assert seen == b"".join(b"line %d\n" % number for number in range(written))


def test_a_reader_waits_for_the_end_of_an_entry(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(b"2026-01-01T00:00:05Z stdout F who")
    with LogReader(path) as reader:
        assert list(reader.read()) == []
        with path.open("ab") as file:
            file.write(b"le\n")
        assert list(reader.read()) == [b"2026-01-01T00:00:05Z stdout F whole\n"]
        path.unlink()
        assert list(reader.read()) == []


def test_times_are_shown_if_asked_for_and_older_entries_left_out(tmp_path):
    entry = b"2026-01-01T00:00:05.000000001Z stdout F hello\n"
    assert present(entry, LogOptions(timestamps=True)) == b"2026-01-01T00:00:05.000000001Z hello\n"
    assert present(entry, LogOptions(since="2026-01-01T00:00:05")) == b"hello\n"
    assert present(entry, LogOptions(since="2026-01-01T00:00:06")) == b""


def test_options_come_from_the_query():
    options = log_options({"follow": "true", "tailLines": "5", "limitBytes": "9", "previous": "false"})
    assert options == LogOptions(follow=True, tail_lines=5, limit_bytes=9)


def test_the_tail_is_at_most_80_plain_lines(tmp_path):
    log = LogWriter(tmp_path / "0.log")
    for number in range(100):
        log.write("stderr", b"line %d\n" % number)
    log.close()
    assert log_tail(tmp_path / "0.log") == b"".join(b"line %d\n" % number for number in range(20, 100))


def test_the_tail_of_long_lines_is_their_end(tmp_path):
    log = LogWriter(tmp_path / "0.log")
    log.write("stderr", b"x" * 5000 + b"why\n")
    log.close()
    tail = log_tail(tmp_path / "0.log")
    assert (len(tail), tail[-5:]) == (2048, b"xwhy\n")
