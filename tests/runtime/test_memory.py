"""What a process frees, it no longer has: shown in a process of its own, because the setting is for good."""

import gc
import importlib
import json
import subprocess
import sys

import pytest

from warmfleet_runtime.memory import (
    available_memory_bytes,
    importing,
    memory_limit_bytes,
    own_memory_bytes,
)

SCRIPT = """
import json, os, sys, threading
from warmfleet_runtime.memory import return_freed_memory
from warmfleet_testing.processes.process_sockets import resident_bytes

if sys.argv[1] == "tuned":
    return_freed_memory()

def work():
    # A large block that is freed makes glibc keep later ones of its size in a heap; a small one that stays
    # behind them keeps that heap from shrinking.
    bytes(30 << 20)
    blocks, pins = [], []
    for _ in range(16):
        blocks.append(b"x" * (2 << 20))
        pins.append(b"x" * 4096)
    del blocks
    kept.append(pins)

kept = []
before = resident_bytes(os.getpid())
for _ in range(4):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(json.dumps(resident_bytes(os.getpid()) - before))
"""


def grown_bytes(how: str) -> int:
    finished = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(json.loads(finished.stdout))


def test_large_blocks_go_back_to_the_system_when_they_are_freed():
    assert grown_bytes("tuned") < 8 << 20


def test_what_is_imported_is_not_collected_meanwhile_and_not_walked_afterwards():
    frozen_before = gc.get_freeze_count()
    with importing():
        collects_meanwhile = gc.isenabled()
        imported = [[] for _ in range(1000)]
    frozen = gc.get_freeze_count() - frozen_before

    assert not collects_meanwhile
    assert gc.isenabled()
    assert frozen >= len(imported)


@pytest.mark.parametrize("package", ["router", "operator", "worker", "cli"])
def test_a_process_collects_garbage_once_it_is_imported_and_walks_no_import(package):
    script = "import gc; IMPORT; print(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    script = script.replace("IMPORT", f"import warmfleet_{package}.__main__")

    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert shown.split() == ["True", "True"]


def test_a_library_counts_as_not_installed_while_others_are_imported_without_it(tmp_path, monkeypatch):
    (tmp_path / "library_for_this_test.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)

    with importing(without=("library_for_this_test", "gc")):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("library_for_this_test")
        assert importlib.import_module("gc") is gc, "it had been imported before"

    assert importlib.import_module("library_for_this_test").VALUE == 3


def test_an_import_leaves_collections_switched_off_where_they_were():
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def cgroup_tree(tmp_path, lines, limits):
    """A /proc and a /sys/fs/cgroup with the control groups of this process."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    for path, text in limits.items():
        file = tmp_path / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "proc", tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        (["0::/"], {"memory.max": "max\n"}, 1000),
        (["0::/"], {"memory.max": "700\n"}, 700),
        (["0::/pods/one"], {"memory.max": "900\n", "pods/memory.max": "600\n"}, 600),
        (["0::/pods/one"], {"pods/memory.max": "max\n", "pods/one/memory.max": "500\n"}, 500),
        (["0::/"], {"memory.max": "2000\n"}, 1000),
        (["4:cpu,memory:/a", "0::/"], {"memory/a/memory.limit_in_bytes": "400\n"}, 400),
        (["4:memory:/unseen/from/here"], {"memory/memory.limit_in_bytes": "300\n"}, 300),
        (["4:memory:/"], {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1000),
        (["0::/"], {}, 1000),
        (["0::/"], {"memory.max": "what\n"}, 1000),
    ],
)
def test_the_least_limit_of_machine_and_control_groups_counts(tmp_path, lines, limits, expected):
    proc, cgroups = cgroup_tree(tmp_path, lines, limits)

    assert memory_limit_bytes(proc, cgroups, machine_bytes=1000) == expected


def test_without_control_groups_the_machine_counts(tmp_path):
    assert memory_limit_bytes(tmp_path, tmp_path, machine_bytes=1000) == 1000


V1_GROUP = {
    "memory/memory.limit_in_bytes": "700000\n",
    "memory/memory.usage_in_bytes": "700001\n",
    "memory/memory.stat": "",
}


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        (["0::/"], {}, 1_024_000),
        (["0::/"], {"memory.max": "max\n", "memory.current": "9\n"}, 1_024_000),
        (
            ["0::/a"],
            {"a/memory.max": "700000\n", "a/memory.current": "300000\n", "a/memory.stat": "file 9\n"},
            400_000,
        ),
        (
            ["0::/a"],
            {
                "a/memory.max": "700000\n",
                "a/memory.current": "300000\n",
                "a/memory.stat": "inactive_file 5\n",
            },
            400_005,
        ),
        (["4:memory:/"], V1_GROUP, 0),
    ],
)
def test_memory_is_left_where_machine_and_control_groups_have_some(tmp_path, lines, limits, expected):
    proc, cgroups = cgroup_tree(tmp_path, lines, limits)
    (proc / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:   1000 kB\n")

    assert available_memory_bytes(proc, cgroups) == expected
    assert available_memory_bytes(tmp_path / "none", cgroups) is None


def test_this_process_holds_less_than_it_may_use():
    least_bytes = 2**20 if sys.platform == "linux" else 0  # other systems do not report it
    assert least_bytes <= own_memory_bytes() < memory_limit_bytes()
