"""The processes of a local fleet, between one that is to go and its end."""

import asyncio
from pathlib import Path

from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.liveness import LivenessPolicy
from warmfleet_cli.local.members import Members
from warmfleet_cli.local.state import RunFolder
from warmfleet_testing.router.local_fleet import NAME, stub_plan


def test_a_worker_that_is_removed_counts_as_leaving_at_once(tmp_path: Path) -> None:
    """A decision between the removal and its first step took it for one that stays, and removed it again."""

    async def test() -> list[bool]:
        kill = asyncio.Event()
        folder = RunFolder(tmp_path, NAME)
        with folder.locked():
            members = Members(
                stub_plan(workers=("", "")),
                folder,
                emit=lambda *_: None,
                on_change=lambda: None,
                must_start=lambda: False,
                kill=kill,
                restarts=RestartPolicy(),
                liveness=LivenessPolicy(),
            )
            members.start()
            members.remove_worker("stubs-0")
            leaving = [member.is_leaving for member in members.workers()]
            kill.set()
            await members.stop()
            members.close()
        return leaving

    assert asyncio.run(test()) == [True, False]
