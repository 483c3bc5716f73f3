"""A bound process ends with its parent, whichever way the parent ends."""

import signal
import subprocess
import sys
import time

import pytest

from warmfleet_runtime import die_with_parent as script
from warmfleet_runtime.die_with_parent import bound_command
from warmfleet_runtime.process_identity import identify, is_alive

PARENT = """
import subprocess, sys, time
from warmfleet_runtime.die_with_parent import bound_command
program = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
child = subprocess.Popen(bound_command(program), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""

STRANGER = """
import os
from warmfleet_runtime.die_with_parent import ParentGoneError, die_with_parent
try:
    die_with_parent(os.getpid())  # no process is its own parent
except ParentGoneError:
    print("refused")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_bound_program_ends_when_its_parent_is_killed(number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert child is not None
        assert is_alive(child)
        parent.send_signal(number)

    deadline = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child)


def test_a_bound_program_keeps_its_arguments_output_and_exit_code():
    command = bound_command([sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a", "-b"])
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.stdout, finished.returncode) == ("['a', '-b']\n", 7)


def test_a_process_whose_parent_ended_before_it_was_bound_does_not_start():
    command = [sys.executable, "-I", script.__file__, "1", sys.executable, "-c", "print('started')"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.stdout, finished.stderr) == ("", "the parent process is gone\n")
    assert finished.returncode == 1


def test_binding_to_another_process_than_the_parent_is_an_error():
    finished = subprocess.run([sys.executable, "-c", STRANGER], capture_output=True, text=True, check=True)
    assert finished.stdout == "refused\n"
