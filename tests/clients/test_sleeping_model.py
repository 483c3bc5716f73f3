"""The unchanged OpenAI SDK asks for a model that sleeps: it waits, through pings, and sends nothing twice."""

import asyncio
import json
import os
from pathlib import Path
from typing import Final

from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.sleeping_models import SleepingModels
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ROOT / ".venv-clients" / "openai-3" / "bin" / "python"
SCRIPT: Final = Path(__file__).parent / "scenarios" / "openai_sleeping.py"


async def test_the_openai_sdk_gets_its_answers_when_the_model_is_awake(tmp_path: Path) -> None:
    assert PYTHON.exists(), "openai-3 is not installed; run: make clients"
    models, settings = SleepingModels({"stub": 60}), AdmissionSettings(ping_seconds=0.05)
    async with running_router([], tmp_path, discovery=models, wait_ready=False, admission=settings) as router:
        client = await asyncio.create_subprocess_exec(
            PYTHON,
            SCRIPT,
            f"{router.url}/v1",
            "stub",
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
        )
        await router.until(lambda: router.router.admission.waking.total.requests == 2)
        await asyncio.sleep(0.2)
        with running_stub(StubWorker(uid="w0", events=3)) as stub:
            models.discover(stub)
            output, _ = await client.communicate()

    assert client.returncode == 0
    assert json.loads(output) == {"plain": True, "chunks": 4}
    assert len(stub.requests) == 2
