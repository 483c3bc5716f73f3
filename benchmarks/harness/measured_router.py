"""A router process in front of a stub fleet, on a core of its own, and what the two cost.

Three processes: the router, the stub fleet, and the load generator, which is the benchmark itself. The router
gets the first core for itself where there is a second one for the other two.
"""

import argparse
import contextlib
import os
import random
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from harness.report import machine_line
from harness.stub_fleet import CHAT_PATH, MODEL_NAME, benchmark_assets
from harness.tenant_keys import write_keys
from warmfleet_cli.bench.processes import LocalProcess, spawned
from warmfleet_contracts.names import HOME_VARIABLE, SALT_KEY_VARIABLE
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_router.discovery.endpoints_file import read_endpoints

COMPLETIONS_PATH: Final = "/v1/completions"
TENANT: Final = "benchmark"
"""The tenant whose key has both scopes."""
_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Cores:
    """Which process runs on which core."""

    router: frozenset[int]
    others: frozenset[int]

    @classmethod
    def shared_out(cls, cores: Sequence[int]) -> "Cores":
        """The first of `cores` for the router alone, if there are others."""
        return cls(frozenset(cores[:1]), frozenset(cores[1:] or cores))

    def line(self) -> str:
        """The hardware, and the share of each process, in a line."""
        return f"{machine_line()}; {self._shares()}"

    def _shares(self) -> str:
        if self.router == self.others:
            return f"router, stub fleet and load generator share core {min(self.router)}"
        others = ", ".join(map(str, sorted(self.others)))
        return f"router on core {min(self.router)}; stub fleet and load generator on {others}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far."""

    cpu_seconds: float
    peak_resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return cls(cpu_seconds, int(peak[1]) * 1024 if peak else 0)


@dataclass(frozen=True, slots=True)
class MeasuredRouter:
    """The two processes, and how to reach them."""

    url: str
    keys: Mapping[str, str]
    """A key's text by tenant."""
    pid: int
    fleet_pid: int
    workers: tuple[tuple[str, str], ...]
    """URL and token of each stub worker."""
    http: httpx.AsyncClient

    @property
    def key(self) -> str:
        """Of the tenant with both scopes."""
        return self.keys[TENANT]

    @property
    def usage(self) -> Usage:
        return Usage.of(self.pid)

    @property
    def others_cpu_seconds(self) -> float:
        """Of stub fleet and load generator: on a full core they slow the streams that they measure."""
        return Usage.of(self.fleet_pid).cpu_seconds + time.process_time()

    async def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The router's newest decisions."""
        response = await self.http.get(
            f"{self.url}/internal/decisions?limit={limit}", headers={"authorization": f"Bearer {self.key}"}
        )
        decisions: list[dict[str, Any]] = response.raise_for_status().json()["decisions"]
        return decisions


@contextlib.asynccontextmanager
async def measured_router(
    folder: Path,
    cores: Cores,
    *,
    blocks: int,
    fleet_flags: Sequence[str] = (),
    tenants: Sequence[str] = (),
    module: str = "warmfleet_router",
    python_path: str = "",
) -> AsyncIterator[MeasuredRouter]:
    """Router and fleet, ready and with every block in the index; logs and files go to `folder`.

    `tenants` get a key for inference each, beside the one with both scopes. `module` is run as the router;
    with the code of another tree if `python_path` is its `checkout_path`.
    """
    router_code = {"PYTHONPATH": python_path} if python_path else {}
    endpoints_path = folder / "endpoints.json"
    scopes = dict.fromkeys(tenants, ("inference",))
    keys = write_keys(folder / "keys.json", {TENANT: ("inference", "admin"), **scopes})
    environment = {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(_ROOT / "benchmarks"), os.environ.get("PYTHONPATH")])
        ),
        SALT_KEY_VARIABLE: secrets.token_hex(32),
    }
    os.sched_setaffinity(0, cores.others)
    fleet_arguments = ["harness.stub_fleet", "--endpoints-file", str(endpoints_path), "--blocks", str(blocks)]
    fleet_arguments += fleet_flags
    router_arguments = [module, "--port", "0", "--endpoints-file", str(endpoints_path)]
    router_arguments += ["--keys-file", str(folder / "keys.json"), "--policy", "LowestCost"]
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30, trust_env=False))
        fleet = await stack.enter_async_context(
            spawned("stub-fleet", fleet_arguments, log_folder=folder, environment=environment)
        )
        await fleet.listening()
        with on_cores(cores.router):
            router: LocalProcess = await stack.enter_async_context(
                spawned(
                    "router",
                    router_arguments,
                    log_folder=folder,
                    environment=environment | {HOME_VARIABLE: str(folder)} | router_code,
                )
            )
        url = await router.ready(http)
        workers = tuple(
            (endpoint.url, endpoint.token.decode()) for endpoint in read_endpoints(endpoints_path)
        )
        yield MeasuredRouter(url, keys, router.pid, fleet.pid, workers, http)


def checkout_path(folder: str) -> str:
    """`PYTHONPATH` of another tree, from an option: it comes before what is installed.

    Raises:
        argparse.ArgumentTypeError: there is no router in that tree; what is installed would be measured.
    """
    packages = sorted(Path(folder).resolve().glob("*/warmfleet_*"))
    if not any(package.name == "warmfleet_router" for package in packages):
        raise argparse.ArgumentTypeError(f"{folder} is no checkout of this project: it has no router")
    return os.pathsep.join(dict.fromkeys(str(package.parent) for package in packages))


class Prompts:
    """Request bodies with prompts of a given length, from the words of this project's own documents."""

    def __init__(self, tokens: int, *, seed: int = 0) -> None:
        self._encoder = PromptEncoder.from_assets(benchmark_assets())
        self._random = random.Random(seed)
        self._tokens = tokens
        documents = [*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").glob("**/*.md"))]
        texts = [path.read_text(encoding="utf-8") for path in documents]
        sentences = re.split(r"(?<=[.:;])\s+|\n\n+", "\n\n".join([(_ROOT / "LICENSE").read_text(), *texts]))
        plain = [text for text in sentences if text.strip() and "<|" not in text]
        self._sentences = [(text + " ", len(self._encoder.encode_text(text))) for text in plain]
        self._shared = self._text(tokens * 9 // 10)

    def shared_prefix(self, max_tokens: int) -> tuple[str, bytes]:
        """A chat: nine tenths are a system prompt that all have in common, the rest is the user's own."""
        messages = [
            {"role": "system", "content": self._shared},
            {"role": "user", "content": self._text(self._tokens - self._tokens * 9 // 10)},
        ]
        return CHAT_PATH, _body(max_tokens, messages=messages)

    def unique_text(self, max_tokens: int) -> tuple[str, bytes]:
        """A completion whose text no request has sent before."""
        return COMPLETIONS_PATH, _body(max_tokens, prompt=self._text(self._tokens))

    def token_ids(self, max_tokens: int) -> tuple[str, bytes]:
        """A completion of random token ids."""
        known = range(32, self._encoder.vocabulary_size)
        return COMPLETIONS_PATH, _body(max_tokens, prompt=self._random.choices(known, k=self._tokens))

    def _text(self, tokens: int) -> str:
        pieces: list[str] = []
        while tokens > 0:
            text, size = self._random.choice(self._sentences)
            pieces.append(text)
            tokens -= size
        return "".join(pieces)


def _body(max_tokens: int, **fields: object) -> bytes:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": max_tokens}
    return msgspec.json.encode({"model": MODEL_NAME, **options, **fields})


@contextlib.contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """What is started in the block runs on `cores`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
