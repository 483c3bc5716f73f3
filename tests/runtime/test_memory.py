"""What a process frees, it no longer has: shown in a process of its own, because the setting is for good."""

import json
import subprocess
import sys

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
