"""One child process: in its own process group, killed when its parent ends, its output in a log file."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from warmfleet_cli.local.log_file import LogFile
from warmfleet_runtime.die_with_parent import bound_command
from warmfleet_runtime.process_identity import ProcessIdentity, identify

_READ_BYTES: Final = 65536


class Child:
    """A running process. Use it to start a server whose output goes to a `LogFile`.

    Construct and `wait` on the thread of the event loop, which must be the main thread.

    Its own process group keeps the terminal's Ctrl-C from it: the supervisor decides the order of shutdown.
    """

    def __init__(self, argv: Sequence[str], *, environment: Mapping[str, str], log: LogFile) -> None:
        self._log = log
        self._output, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                bound_command(argv),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                process_group=0,
            )
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(self._output, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._output, self._drain_output)
        # Not reaped before wait(), so the pid is still this process's, alive or not.
        self.identity = identify(self._process.pid) or ProcessIdentity(self._process.pid, "")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, negative for a signal. What the process left in its group is killed with it."""
        descriptor = os.pidfd_open(self._process.pid)
        exited = asyncio.Event()
        self._loop.add_reader(descriptor, exited.set)
        try:
            await exited.wait()
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self.kill()
        self._close_output()
        return self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the process, not to its children: it drains and stops them itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _drain_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, _READ_BYTES)
            if data:
                self._log.write(data)
            else:
                self._loop.remove_reader(self._output)

    def _close_output(self) -> None:
        """Read what is left in the pipe, without waiting for a grandchild that still has it open."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, _READ_BYTES):
                self._log.write(data)
        self._loop.remove_reader(self._output)
        os.close(self._output)
