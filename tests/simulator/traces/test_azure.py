"""Azure CSV: prompts that share nothing, and impossible lines are refused by number and field."""

import gzip
from pathlib import Path

import pytest

from warmfleet_simulator.errors import TraceError
from warmfleet_simulator.traces.reader import read_trace
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.traces.trace_file import TraceFile
from warmfleet_testing.cache.infinite_cache import infinite_hit_rate

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\r\n"


def read(folder: Path, content: bytes) -> list[TraceRequest]:
    path = folder / "azure.csv"
    path.write_bytes(content)
    with TraceFile(path) as file:
        return list(read_trace(file))


def test_lines_are_requests_whose_prompts_share_nothing(tmp_path: Path) -> None:
    lines = [FIRST, "2023-11-16 18:15:50.9951690,374,109\n", "2023-11-16 18:15:50.9951690,374,1\n"]

    requests = read(tmp_path, (HEADER + "".join(lines)).encode())

    assert [request.arrival_seconds for request in requests] == pytest.approx(
        [0, 4.314579, 4.314579], abs=1e-5
    )
    assert [request.prompt_tokens for request in requests] == [374, 374, 374]
    assert [request.output_tokens for request in requests] == [44, 109, 1]
    assert infinite_hit_rate(requests, 1) == 0


def test_a_compressed_trace_with_a_byte_order_mark_and_zones_is_read_alike(tmp_path: Path) -> None:
    plain = HEADER + FIRST + "2023-11-17 00:00:00,5,6\n"
    marked = "\ufeff" + plain.replace("5900,", "59+00:00,").replace("00:00:00,5", "01:00:00+01:00,5")

    assert read(tmp_path, gzip.compress(marked.encode())) == read(tmp_path, plain.encode())


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (
            "2023-11-16 18:15:46.68,374,44",
            "TIMESTAMP 2023-11-16 18:15:46.68 is below 2023-11-16 18:15:46.6805900",
        ),
        ("yesterday,374,44", "TIMESTAMP 'yesterday' is no date and time"),
        ("2023-11-16 18:15:47,374", "2 fields in place of TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("2023-11-16 18:15:47,374,44,1", "4 fields"),
        ("2023-11-16 18:15:47,-1,44", "ContextTokens '-1' is no number"),
        ("2023-11-16 18:15:47,1e3,44", "ContextTokens '1e3' is no number"),
        ("2023-11-16 18:15:47," + "9" * 5000 + ",44", "ContextTokens"),
        ("2023-11-16 18:15:47,374,0", "GeneratedTokens 0 is not between"),
        ("2023-11-16 18:15:47,374,\udcff", "line 3"),
    ],
)
def test_an_impossible_line_is_refused_by_number_and_field(tmp_path: Path, second: str, reason: str) -> None:
    with pytest.raises(TraceError, match="line 3") as refused:
        read(tmp_path, (HEADER + FIRST + second).encode(errors="surrogateescape"))
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_compressed_trace_that_is_cut_off_is_refused_by_the_line(tmp_path: Path) -> None:
    content = gzip.compress(
        (HEADER + "".join(f"2023-11-16 18:15:{at:02},{at},9\n" for at in range(60))).encode()
    )

    with pytest.raises(TraceError, match=r"line \d+: the file is cut off or damaged"):
        read(tmp_path, content[:-20])
