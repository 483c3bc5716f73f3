"""As many connections as there are descriptors for, and as many descriptors as may be had."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_runtime.http.descriptors import RESERVED_DESCRIPTORS, fitting
from warmfleet_testing.processes.process_limits import open_files, under

SCRIPT = """
import resource, json
from warmfleet_runtime.http.descriptors import connections_that_fit
from warmfleet_runtime.logs import configure_logs
configure_logs(process="test")
connections = connections_that_fit(2000, descriptors_each=2)
print(json.dumps([connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))
"""


@given(wanted=st.integers(1, 20_000), limit=st.integers(1, 100_000), each=st.integers(1, 3))
def test_what_fits_stays_within_the_limit_and_leaves_the_reserve_alone(wanted, limit, each):
    connections = fitting(wanted, limit, each)

    assert 1 <= connections <= wanted
    if limit >= RESERVED_DESCRIPTORS + wanted * each:
        assert connections == wanted
    elif limit >= 2 * RESERVED_DESCRIPTORS:
        assert connections * each + RESERVED_DESCRIPTORS <= limit
    assert connections == 1 or connections * each <= limit


@pytest.mark.parametrize(
    ("limits", "connections", "soft", "warns"),
    [
        (open_files(1024, 8192), 2000, 4128, False),
        (open_files(6000, 8192), 2000, 6000, False),
        (open_files(256, 1024), 448, 1024, True),
        (open_files(64, 64), 16, 64, True),
    ],
    ids=["a low soft limit", "enough", "a low hard limit", "hardly any"],
)
def test_a_process_raises_its_limit_and_bounds_its_connections_by_it(limits, connections, soft, warns):
    finished = subprocess.run(
        under(limits, [sys.executable, "-c", SCRIPT]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    logged = [json.loads(line) for line in finished.stderr.splitlines()]
    assert json.loads(finished.stdout) == [connections, soft]
    assert len(logged) == warns
    if warns:
        assert logged[0]["level"] == "warning"
        assert (logged[0]["connections"], logged[0]["open_files"]) == (connections, soft)
        assert "hard limit" in logged[0]["advice"]
