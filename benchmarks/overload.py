"""What becomes of a fleet that is asked for three times what it can do, and how soon is it itself again?

One router with keys and its own defaults before real workers. Requests one after the other show how long a
first token takes without others; a closed loop measures the capacity: so many requests under way that every
seat is always taken. Then requests arrive whether or not earlier ones were answered: at half the capacity, at
three times, and at half again. In the overload they are a Poisson process; before and after it they are
evenly spaced, so that no request meets the prefill of another by chance. All have prompts of their own, so
the cache helps no request, and all answers repeat one word, so that each token can be sent as text at once: a
client sees nothing of a token that ends within a character.

The fleet has recovered when every later request gets its first token within twice the time that one alone
takes. The time until then counts from the end of the overload. A process that does not belong to the
benchmark makes requests late, too: the output has what such processes took.

    python benchmarks/overload.py [--workers 1] [--factor 3] [--seconds 30]     # a bit under three minutes
"""

import argparse
import asyncio
import contextlib
import os
import random
import secrets
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import httpx
import msgspec
import uvloop
from harness.event_client import EventClient
from harness.measured_router import COMPLETIONS_PATH, TENANT, Cores, on_cores
from harness.other_processes import OtherProcesses, with_children
from harness.overload_figures import (
    ANSWER_TOKENS,
    SAMPLE_SECONDS,
    Overload,
    Phase,
    Sample,
    Sent,
    Watched,
    summary,
)
from harness.report import Report, machine_line
from harness.tenant_keys import write_keys

from warmfleet_cli.bench.processes import LocalProcess, spawned
from warmfleet_contracts.names import HOME_VARIABLE, SALT_KEY_VARIABLE
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.catalog import catalog_model_path

MODEL_NAME: Final = "smollm2-135m-instruct"
PROMPT_TOKENS: Final = 64
ANSWER_WORD: Final = " time"
KNOWN_TOKEN_IDS: Final = range(1000, 40_000)
SEATS: Final = 8
NORMAL_RATIO: Final = 0.5
"""Of the capacity: what arrives before and after the overload."""
LONE_REQUESTS: Final = 20
WARM_UP_SECONDS: Final = 5.0


class Load:
    """Sends requests and watches the router."""

    def __init__(
        self,
        url: str,
        key: str,
        http: httpx.AsyncClient,
        others: OtherProcesses,
        *,
        answer_token_id: int,
        seed: int = 0,
    ) -> None:
        """`answer_token_id` is the token that all answers repeat."""
        self._sent: list[Sent] = []
        self._samples: list[Sample] = []
        self.watched = Watched(self._sent, self._samples)
        self._client = EventClient(url, key)
        self._url, self._key, self._http, self._others = url, key, http, others
        self._random = random.Random(seed)
        answer = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, "logit_bias": {str(answer_token_id): 100}}
        options = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        self._fields = {"model": MODEL_NAME, **answer, **options}
        self._now = asyncio.get_running_loop().time

    async def closed_loop(self, *, under_way: int, seconds: float) -> Phase:
        """Keep `under_way` requests under way for `seconds`."""
        phase = Phase(self._now(), self._now() + seconds)

        async def one_after_the_other() -> None:
            while self._now() < phase.ended:
                await self._send(self._now())

        await asyncio.gather(*(one_after_the_other() for _ in range(under_way)))
        return phase

    async def alone(self, requests: int) -> Phase:
        """Send one request after the other."""
        started = self._now()
        for _ in range(requests):
            await self._send(self._now())
        return Phase(started, self._now())

    async def open_loop(
        self, tasks: asyncio.TaskGroup, *, per_second: float, seconds: float, evenly: bool
    ) -> Phase:
        """Send at even intervals, or as a Poisson process; `tasks` wait for the last answers."""
        phase = Phase(self._now(), self._now() + seconds)
        due = phase.started
        while (due := due + (1 if evenly else self._random.expovariate(1)) / per_second) < phase.ended:
            await asyncio.sleep(max(due - self._now(), 0))
            tasks.create_task(self._send(due))
        await asyncio.sleep(max(phase.ended - self._now(), 0))
        return phase

    async def watch(self) -> None:
        """Sample the router until cancelled."""
        headers = {"authorization": f"Bearer {self._key}"}
        while True:
            at = self._now()
            response = await self._http.get(f"{self._url}/internal/fleet", headers=headers)
            fleet = response.raise_for_status().json()
            totals = fleet["totals"]
            held = sum(held["requests"] for held in fleet["held"].values())
            waiting, running = totals["waiting_sequences"], totals["running_sequences"]
            self._samples.append(Sample(at, held, waiting, running, self._others.cpu_seconds))
            await asyncio.sleep(SAMPLE_SECONDS)

    def close(self) -> None:
        self._client.close()

    async def _send(self, due: float) -> None:
        prompt = self._random.choices(KNOWN_TOKEN_IDS, k=PROMPT_TOKENS)
        body = msgspec.json.encode({**self._fields, "prompt": prompt})
        answer = await self._client.ask(COMPLETIONS_PATH, body, uuid.uuid4().hex)
        self._sent.append(Sent(due, answer, self._now()))


async def run(options: argparse.Namespace, cores: Cores) -> tuple[Overload, Watched]:
    async with fleet(options, cores) as load:
        watching = asyncio.create_task(load.watch())
        await load.closed_loop(under_way=SEATS * options.workers, seconds=WARM_UP_SECONDS)
        lone_at_first = await load.alone(LONE_REQUESTS)
        saturated = SEATS * options.workers * 2
        capacity = await load.closed_loop(under_way=saturated, seconds=options.seconds)
        per_second = load.watched.goodput(capacity)
        async with asyncio.TaskGroup() as tasks:
            normal = NORMAL_RATIO * per_second
            phases = (
                await load.open_loop(tasks, per_second=normal, seconds=options.seconds, evenly=True),
                await load.open_loop(
                    tasks, per_second=options.factor * per_second, seconds=options.seconds, evenly=False
                ),
                await load.open_loop(tasks, per_second=normal, seconds=options.seconds, evenly=True),
            )
        lone_at_last = await load.alone(LONE_REQUESTS)
        watching.cancel()
        load.close()
    return summary(load.watched, (lone_at_first, lone_at_last), capacity, phases), load.watched


@contextlib.asynccontextmanager
async def fleet(options: argparse.Namespace, cores: Cores) -> AsyncIterator[Load]:
    """Workers on their cores, the router with the load generator on the first; ready."""
    folder, model_path = (
        options.output_dir,
        options.model_path or catalog_model_path(MODEL_NAME, warmfleet_home()),
    )
    if model_path is None:
        raise SystemExit(f"model {MODEL_NAME} is not here; fetch it: warmfleet model pull {MODEL_NAME}")
    key = write_keys(folder / "keys.json", {TENANT: ("inference", "admin")})[TENANT]
    environment = {SALT_KEY_VARIABLE: secrets.token_hex(32), HOME_VARIABLE: str(folder)}
    worker = ["warmfleet_worker", "--model", str(model_path), "--served-name", MODEL_NAME, "--port", "0"]
    worker += ["--max-running-sequences", str(SEATS), "--max-model-length-tokens", "1024"]
    worker += ["--threads", str(max(len(cores.others) // options.workers, 1))]
    router = ["warmfleet_router", "--port", "0", "--keys-file", str(folder / "keys.json")]
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30, trust_env=False))

        async def start(name: str, arguments: Sequence[str], on: frozenset[int]) -> LocalProcess:
            with on_cores(on):
                process = spawned(name, arguments, log_folder=folder, environment=environment)
                return await stack.enter_async_context(process)

        pids = [os.getpid()]
        for number in range(options.workers):
            process = await start(f"worker-{number}", [*worker, "--uid", f"worker-{number}"], cores.others)
            router += ["--endpoint", f"worker-{number}={await process.ready(http)}"]
            pids += with_children(process.pid)
        process = await start("router", router, cores.router)
        url = await process.ready(http)
        others = OtherProcesses([*pids, process.pid])
        with on_cores(cores.router):
            yield Load(url, key, http, others, answer_token_id=await _token_id(ANSWER_WORD, url, key, http))


async def _token_id(text: str, url: str, key: str, http: httpx.AsyncClient) -> int:
    """The first token of `text`."""
    response = await http.post(
        f"{url}/tokenize",
        json={"model": MODEL_NAME, "prompt": text, "add_special_tokens": False},
        headers={"authorization": f"Bearer {key}"},
    )
    tokens: list[int] = response.raise_for_status().json()["tokens"]
    return tokens[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--factor", type=float, default=3.0, help="of the capacity, at the worst")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the four phases")
    parser.add_argument("--model-path", type=Path, help=f"instead of {MODEL_NAME}")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/overload"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    measured, watched = uvloop.run(run(options, cores))
    return report.end(
        "\n".join(measured.lines()),
        measured.targets(options.factor),
        measured=asdict(measured) | {"recovered_after_seconds": measured.recovered_after_seconds},
        samples=[asdict(sample) for sample in watched.samples],
        sent=[asdict(one) for one in watched.sent],
    )


if __name__ == "__main__":
    sys.exit(main())
