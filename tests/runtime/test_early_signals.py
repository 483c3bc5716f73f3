"""A program that gets SIGTERM while it still imports ends, also as process 1 of a container."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, runpy, signal, sys

# As process 1 of a container: the kernel drops a signal that has no handler.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == "warmfleet_contracts":
            os.kill(os.getpid(), signal.SIGTERM)
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Sender())
sys.argv = [sys.argv[1], "--help"]  # of a program that goes on: it ends with 0
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["warmfleet_worker", "warmfleet_router", "warmfleet_operator"])
def test_a_program_that_gets_sigterm_while_it_imports_ends(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, timeout=60, check=False
    )

    assert ended.returncode == 128 + 15, ended.stdout
