"""One process of the devcluster: started inside its network, bound to die with us, its output in a file."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warmfleet_runtime.process_identity import ProcessIdentity, identify

_ENTER_NETWORK: Final = str(Path(__file__).with_name("enter_network.py"))
_QUOTED_BYTES: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """What to start, and how long it may take to end."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of what the supervisor's own environment passes on."""
    essential: bool = True
    """Whether the devcluster ends when it does. Nodes are not: a cluster survives the loss of one."""
    grace_seconds: float = 0.0
    """From SIGTERM to SIGKILL; 0 kills at once: most have no state to save, their data is deleted."""


class Component:
    """A running process. Its own process group keeps the terminal's Ctrl-C from it."""

    def __init__(self, plan: ComponentPlan, process: asyncio.subprocess.Process, log: Path) -> None:
        self.plan = plan
        self._process = process
        self._log = log
        # Not reaped before wait(), so the pid is still this process's, alive or not.
        self.identity = identify(process.pid) or ProcessIdentity(process.pid, "")

    @classmethod
    async def start(cls, plan: ComponentPlan, *, namespace: Path, log: Path) -> "Component":
        """Start it inside the network namespace. Call on the main thread: it dies with its thread."""
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                _ENTER_NETWORK,
                str(os.getpid()),
                str(namespace),
                *plan.argv,
                env={**os.environ, **plan.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        return cls(plan, process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL to its process group after the grace period."""
        if self.exit_code is not None:
            return  # the kernel may have given its id to another process
        if self.plan.grace_seconds > 0.0:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), self.plan.grace_seconds)
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def log_tail(self) -> str:
        """The last 2,000 bytes of its log."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _QUOTED_BYTES))
            return file.read(_QUOTED_BYTES).decode(errors="replace").strip()

    def _signal(self, number: signal.Signals) -> None:
        try:
            if number is signal.SIGKILL:
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                os.kill(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
