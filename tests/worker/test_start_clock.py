"""The phases of a worker's start, and that its engine starts before the server has imported its libraries."""

import subprocess
import sys
import time

from warmfleet_contracts.cache.start_phases import MAX_PHASE_SECONDS, StartPhases
from warmfleet_worker.start_clock import StartClock, process_started_at


def printed(script: str) -> str:
    """Output of a Python process of its own."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_phases_follow_each_other_without_a_gap():
    now = time.monotonic()
    clock = StartClock(now - 10)

    clock.engine_ready(imports_at=now - 7, load_at=now - 2)
    clock.opened()
    clock.first_token(0.25)

    phases = clock.phases
    assert (phases.process, phases.imports, phases.first_token) == (3.0, 5.0, 0.25)
    together = sum(clock.phases.by_name().values()) - 0.25
    assert 10.0 <= together <= 10.01 + time.monotonic() - now


def test_each_phase_is_taken_once():
    clock = StartClock(time.monotonic())
    clock.engine_ready(imports_at=1.0, load_at=1.0)
    clock.opened()
    clock.first_token(0.5)
    first = clock.phases

    clock.opened()
    clock.first_token(0.1)

    assert clock.phases is first


def test_an_engine_that_measures_nothing_has_loaded_all_the_time():
    clock = StartClock(time.monotonic() - 4)

    clock.engine_ready(imports_at=0.0, load_at=0.0)

    assert list(clock.phases.by_name()) == ["load"]
    assert clock.phases.load >= 4


def test_times_of_another_clock_stay_within_the_bounds_of_the_contract():
    clock = StartClock(0.0)

    clock.engine_ready(imports_at=1e300, load_at=5.0)

    assert clock.phases.by_name().keys() == {"process", "imports", "load"}
    assert all(0 <= seconds <= MAX_PHASE_SECONDS for seconds in clock.phases.by_name().values())
    assert StartClock().phases == StartPhases()


def test_the_start_of_this_process_lies_before_its_first_line():
    script = (
        "import time; now = time.monotonic(); from warmfleet_worker.start_clock import process_started_at"
    )
    script += "; print(now - process_started_at())"
    before = time.monotonic()

    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert 0 < float(shown) <= time.monotonic() - before
    assert process_started_at() < time.monotonic()


def test_what_the_start_of_the_engine_waits_for_is_imported_without_the_server():
    script = "import sys, warmfleet_worker.__main__; print(*sys.modules)"

    modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert "tokenizers" in modules.split()
    assert {"starlette", "uvicorn", "jinja2", "prometheus_client", "rich"}.isdisjoint(modules.split())


def test_an_engine_process_imports_nothing_of_the_server_and_of_prompts():
    script = "import sys, warmfleet_worker.engine_process; print(*sys.modules)"

    modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    unneeded = {"starlette", "uvicorn", "jinja2", "tokenizers", "prometheus_client", "pydantic", "rich"}
    assert unneeded.isdisjoint(modules.split())
