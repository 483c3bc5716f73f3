"""`warmfleet model size` counts as the engine, its scheduler and the operator do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.local.hub_model import fetched_hub_model
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.worker_memory import PROCESS_BYTES, worker_memory_bytes
from warmfleet_testing.engine.fake_runner import EngineDriver
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.engine import step_time
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.native.model import NativeModel
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

CPU = torch.device("cpu")
EXAMPLE = Path(__file__).parents[3] / "examples" / "smollm2.yaml"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder("llama", tmp_path_factory.mktemp("llama"))


def size(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["model", "size", *arguments])


def record(*arguments: str) -> dict[str, Any]:
    result = size(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def needed(folder: Path, *arguments: str) -> dict[str, Any]:
    (only,) = record(str(folder), "--dtype", "Float32", *arguments)["needs"]
    assert isinstance(only, dict)
    return only


def manifest(path: Path, source: dict[str, Any], **spec: Any) -> Path:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"] = {"model": {"source": source}, "kvCache": {"size": "64Mi"}, **spec}
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_blocks_are_those_of_the_engine(folder: Path) -> None:
    need = needed(folder, "--context", "100", "--users", "5")

    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=need["kv_cache_bytes"], dtype="Float32"))

    assert runner.total_blocks == need["blocks"] == 5 * 7 + 1
    assert runner.kv_bytes_per_token == need["bytes_per_token"]
    assert 0 <= need["kv_cache_size_bytes"] - need["kv_cache_bytes"] < 2**20


@pytest.mark.parametrize(("users", "context"), [(5, 97), (5, 98), (8, 200), (2, 2), (1, 100)])
def test_users_run_at_once_in_those_blocks_and_not_in_one_less(
    folder: Path, users: int, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All prompts in the first step, of which an engine knows nothing: a sequence ends with its first token.
    monkeypatch.setattr(step_time, "START_AUTO_BATCHED_TOKENS", 4096)
    blocks = needed(folder, "--context", str(context), "--users", str(users), "--block-size-tokens", "4")[
        "blocks"
    ]

    def at_once(total_blocks: int) -> int:
        driver = EngineDriver(total_blocks=total_blocks, max_batched_tokens=4096)
        for user in range(users):
            prompt = [(user * 31 + index * 7) % 500 for index in range(context - 1)]
            driver.add(user, prompt, max_output_tokens=1)
        driver.step()
        return len(driver.runner.batches[-1].chunks)

    assert at_once(blocks) == users
    if users > 1:  # a single sequence that is longer than the pool is refused before it is queued
        assert at_once(blocks - 1) == users - 1


def test_answers_grow_to_their_whole_length_in_those_blocks_without_a_preemption(folder: Path) -> None:
    blocks = needed(folder, "--context", "60", "--users", "6", "--block-size-tokens", "4")["blocks"]
    preempted = []
    for total_blocks in (blocks, 6 * 15 - 1):
        driver = EngineDriver(total_blocks=total_blocks, max_batched_tokens=4096)
        for user in range(6):
            driver.add(user, [user * 50 + 1, 2], max_output_tokens=58)
        driver.run()
        preempted.append(driver.preempted_sequences)

    assert preempted[0] == 0
    assert preempted[1] > 0


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}])
@pytest.mark.parametrize("context", [64, 1024])
def test_every_size_is_what_is_allocated(overrides: dict[str, Any], context: int, tmp_path: Path) -> None:
    folder = tiny_model_folder("llama", tmp_path / "model", max_position_embeddings=context, **overrides)
    need = needed(folder, "--context", str(context), "--users", "3")
    config = load_model_config(folder)
    layout = kv_layout(KvShape(config.layers, config.kv_heads, config.head_dim, 4), 16)

    decoder = load_decoder(folder, config, positions=context, dtype=torch.float32, device=CPU)
    arena = KvArena(layout, layout.blocks_in(need["kv_cache_size_bytes"]), torch.float32, CPU)
    attention = TorchGatherAttention(arena, heads=config.heads, window_tokens=0, max_context_tokens=context)

    memory = need["memory"]
    assert memory["weights_bytes"] == held_bytes(decoder)
    assert memory["arena_bytes"] == arena.storage.nbytes
    assert memory["workspace_bytes"] == attention._workspace.nbytes
    assert need["pod_bytes"] == PROCESS_BYTES + sum(memory.values())


def test_int8_weights_are_packed_into_what_is_computed(tmp_path: Path) -> None:
    folder = tiny_model_folder("llama", tmp_path / "model", hidden_size=192, intermediate_size=256)
    arguments = (str(folder), "--dtype", "BFloat16", "--users", "1")
    without, computed = (
        record(*arguments, "--weight-quantization", quantization)["needs"][0]["memory"]["weights_bytes"]
        for quantization in ("None", "Int8")
    )

    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, weight_quantization="Int8"))

    model = runner.step_model
    assert isinstance(model, NativeModel)
    assert computed < 0.65 * without
    assert 0.8 * computed < model._weights.region.size_bytes <= computed


@pytest.mark.parametrize("dtype", ["BFloat16", "Float32"])
@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": True}, {"num_attention_heads": 14, "hidden_size": 112, "head_dim": 8}],
)
def test_the_native_step_packs_weights_into_what_is_computed(
    overrides: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    folder = tiny_model_folder("llama", tmp_path / "model", **overrides)
    computed = record(str(folder), "--dtype", dtype, "--users", "1")["needs"][0]["memory"]["weights_bytes"]

    runner = load_runner(
        folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Auto" if dtype == "BFloat16" else "Float32")
    )

    assert runner.dtype_name == dtype
    model = runner.step_model
    assert isinstance(model, NativeModel)
    assert 0.5 * computed < model._weights.region.size_bytes <= computed


def held_bytes(value: object) -> int:
    """Of every tensor that can be reached from a decoder, each memory once."""
    seen: dict[int, int] = {}
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, torch.Tensor):
            seen[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, tuple):
            rest += one
        elif type(one).__module__.startswith("warmfleet_worker"):
            names = getattr(one, "__dataclass_fields__", None) or vars(one)
            rest += [getattr(one, name) for name in names]
    return sum(seen.values())


def test_a_manifest_brings_its_own_settings_and_its_pods_request_the_same(
    folder: Path, tmp_path: Path
) -> None:
    engine = {"dtype": "Float16", "maxModelLengthTokens": 300}
    path = manifest(
        tmp_path / "m.yaml",
        {"localPath": {"path": str(folder)}},
        engine=engine,
        kvCache={"size": "3Mi", "blockSizeTokens": 32},
    )

    shown = record(str(path))
    need = record(str(path), "--users", "2")

    deployment = parse_manifest(yaml.safe_load(path.read_text()), origin="test", local=True)
    with_size = worker_memory_bytes(deployment.spec, model_of(folder))
    assert [(one["dtype"], one["pod_bytes"]) for one in shown["kv_cache"]] == [("Float16", with_size)]
    assert shown["kv_cache_bytes"] == 3 * 2**20
    assert shown["longest_sequence_tokens"] == 300
    assert need["context_tokens"] == 300
    assert need["needs"][0]["blocks"] == 2 * 10 + 1


def model_of(folder: Path) -> Any:
    from warmfleet_worker.model.shapes import model_size  # noqa: PLC0415

    return model_size(load_model_config(folder))


@pytest.mark.parametrize(
    ("source", "engine", "stated"),
    [
        ({"image": {"reference": "registry.example/m@sha256:" + "a" * 64}}, {}, "image or volume"),
        ({"catalog": {"name": "smollm2-135m-instruct"}}, {}, "is not on this machine"),
        ({"huggingFace": {"repository": "o/m", "revision": "main"}}, {}, "o/m@main is not on this machine"),
        ({"localPath": {"path": "/nowhere"}}, {}, "/nowhere holds no config.json"),
    ],
)
def test_a_model_that_is_not_here_is_refused_with_a_way_to_get_it(
    source: dict[str, Any], engine: dict[str, Any], stated: str, tmp_path: Path
) -> None:
    result = size(str(manifest(tmp_path / "m.yaml", source, engine=engine)))

    assert result.exit_code == ExitCode.MODEL
    assert stated in result.stderr


def test_what_cannot_be_computed_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    vllm = manifest(tmp_path / "v.yaml", {"localPath": {"path": str(folder)}}, engine={"type": "VLLM"})
    (tmp_path / "empty").mkdir()
    cases = {
        (str(vllm),): (ExitCode.FAILED, "type VLLM"),
        (str(tmp_path / "empty"),): (ExitCode.MODEL, "holds no config.json"),
        (str(tmp_path / "none.yaml"),): (ExitCode.MANIFEST, "none.yaml"),
        ("gpt-17",): (ExitCode.MODEL, "neither in the catalog nor a model folder nor a manifest"),
        (str(folder), "--context", "1025"): (ExitCode.USAGE, "longest sequence"),
        (str(folder), "--context", "9", "--kv-size", "1Gi"): (ExitCode.USAGE, "--kv-size"),
        (str(folder), "--kv-size", "much"): (ExitCode.USAGE, "--kv-size"),
        (str(folder), "--dtype", "Int3"): (ExitCode.USAGE, "--dtype"),
        (str(folder), "--weight-quantization", "Int3"): (ExitCode.USAGE, "--weight-quantization"),
        (str(folder), "--users", "0"): (ExitCode.USAGE, "--users"),
    }
    for arguments, (code, stated) in cases.items():
        result = size(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        assert stated in result.stderr, (arguments, result.stderr)


def test_the_table_shows_what_to_write_into_a_manifest(folder: Path) -> None:
    shown = size(str(folder), "--context", "1024", "--users", "1000").stdout

    assert "For 1,000 users at once, each with 1,024 tokens" in shown
    assert "kvCache.size" in shown
    assert "POD MEMORY" in shown
    assert f"{64_000 + 647:,}" in shown


def test_a_model_of_the_hub_that_was_fetched_is_found_without_the_hub(home: Path) -> None:
    deployment = parse_manifest(
        {
            **yaml.safe_load(EXAMPLE.read_text()),
            "spec": {
                "model": {"source": {"huggingFace": {"repository": "o/m"}}},
                "kvCache": {"size": "64Mi"},
            },
        },
        origin="test",
        local=True,
    )
    assert fetched_hub_model(deployment.spec.model.source, home) is None


def test_sizes_need_no_torch() -> None:
    code = "import sys, warmfleet_cli.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
