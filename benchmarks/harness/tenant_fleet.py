"""Real workers behind a real router with keys, as `warmfleet up --keys-file` starts them."""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx
import torch
from safetensors.torch import save_file

from harness.tenant_keys import write_keys
from warmfleet_cli.bench.fleet import WorkerShape
from warmfleet_cli.bench.processes import LocalProcess, spawned
from warmfleet_contracts.names import HOME_VARIABLE, SALT_KEY_VARIABLE, WORKER_TOKEN_VARIABLE
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.shapes import expected_shapes
from warmfleet_worker.model_store.catalog import catalog_model_path

OPERATOR: Final = "administrator"
"""The tenant whose key has admin scope and no inference."""
_ASSETS: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_SMALL: Final[Mapping[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class TenantFleet:
    """A running fleet, and how to reach it as each tenant."""

    url: str
    keys: Mapping[str, str]
    """A key's text by tenant."""
    worker_urls: Sequence[str]
    http: httpx.AsyncClient

    async def get(self, path: str, tenant: str = OPERATOR) -> httpx.Response:
        """What the router answers `tenant`."""
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return await self.http.get(f"{self.url}{path}", headers=headers)

    async def decisions(self, limit: int = 4096) -> list[dict[str, Any]]:
        """The router's newest decisions, as the operator sees them."""
        answer = (await self.get(f"/internal/decisions?limit={limit}")).raise_for_status().json()
        return cast("list[dict[str, Any]]", answer["decisions"])

    async def endpoints(self) -> list[dict[str, Any]]:
        """The router's view of every worker."""
        answer = (await self.get("/internal/fleet")).raise_for_status().json()
        return cast("list[dict[str, Any]]", answer["endpoints"])

    async def settled(self) -> None:
        """Until no request is open anywhere in the router's view."""
        while True:
            endpoints = await self.endpoints()
            if not any(one["open_dispatches"] or one["load"]["running_sequences"] for one in endpoints):
                return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def tenant_fleet(
    folder: Path, shape: WorkerShape, *, workers: int, tenants: Sequence[str]
) -> AsyncIterator[TenantFleet]:
    """Workers and a router with one key for each of `tenants`, ready. Logs and files go to `folder`."""
    endpoints_path, keys_path = folder / "endpoints.json", folder / "keys.json"
    scopes = dict.fromkeys(tenants, ("inference",))
    keys = write_keys(keys_path, {**scopes, OPERATOR: ("admin",)})
    tokens = [secrets.token_hex(16) for _ in range(workers)]
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=60, trust_env=False))

        async def start(name: str, arguments: list[str], **environment: str) -> LocalProcess:
            return await stack.enter_async_context(
                spawned(name, arguments, log_folder=folder, environment=environment)
            )

        processes = [
            await start(
                f"worker-{number}",
                shape.arguments(f"worker-{number}"),
                **{WORKER_TOKEN_VARIABLE: token, "OMP_NUM_THREADS": str(shape.threads)},
            )
            for number, token in enumerate(tokens)
        ]
        urls = [await process.listening() for process in processes]
        entries = [
            {"uid": f"worker-{number}", "url": url, "token": token}
            for number, (url, token) in enumerate(zip(urls, tokens, strict=True))
        ]
        endpoints_path.write_text(json.dumps(entries))
        endpoints_path.chmod(0o600)
        router = await start(
            "router",
            [
                *("warmfleet_router", "--port", "0", "--policy", "LowestCost"),
                *("--endpoints-file", str(endpoints_path), "--keys-file", str(keys_path)),
            ],
            **{SALT_KEY_VARIABLE: secrets.token_hex(32), HOME_VARIABLE: str(folder)},
        )
        for process in processes:
            await process.ready(http)
        fleet = TenantFleet(await router.ready(http), keys, urls, http)
        await _all_ready(fleet, workers)
        yield fleet


def catalog_folder(name: str) -> Path:
    """The pulled catalog model; exits with advice if there is none."""
    folder = catalog_model_path(name, warmfleet_home())
    if folder is None:
        raise SystemExit(f"the model is missing; fetch it: warmfleet model pull {name}")
    return folder


def small_model(folder: Path, assets_of: Path) -> Path:
    """A seeded Llama of 128 dimensions and 4 layers in `folder`, with the tokenizer of the model `assets_of`.

    Fast enough for thousands of requests; its text means nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _ASSETS:
        if (assets_of / name).exists():
            (folder / name).write_bytes((assets_of / name).read_bytes())
    known = json.loads((assets_of / "config.json").read_text())
    config = {
        **_SMALL,
        **{name: known.get(name) for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")},
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones(shape)
        if name.endswith("norm.weight")
        else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in expected_shapes(load_model_config(folder)).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def single_core_threads() -> None:
    """Keep this process's own torch from taking the cores that it measures."""
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


async def _all_ready(fleet: TenantFleet, workers: int) -> None:
    while True:
        endpoints = await fleet.endpoints()
        if sum(endpoint["ready"] and endpoint["precise"] for endpoint in endpoints) == workers:
            return
        await asyncio.sleep(0.05)
