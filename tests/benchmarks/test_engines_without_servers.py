"""The engines that benchmarks run without their servers."""

from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from shares.engine_without_server import MODULES
from shares.setups import VLLM, WARMFLEET, Setup

from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_worker.settings import EngineType


def test_every_engine_type_has_a_module() -> None:
    assert set(MODULES) == set(get_args(EngineType))
    assert all(find_spec(module) is not None for module in MODULES.values())


@pytest.mark.parametrize("setup", [WARMFLEET, VLLM], ids=lambda setup: setup.engine_type)
def test_a_fleet_has_the_settings_of_the_engine_alone(setup: Setup) -> None:
    spec = parse_manifest(setup.manifest(Path("/models/m")), origin="a fleet", local=True).spec
    alone = setup.settings("/models/m")

    assert spec.engine.type == setup.engine_type
    assert spec.engine.max_model_length_tokens == alone.max_model_length_tokens
    assert spec.engine.max_running_sequences == alone.max_running_sequences
    assert spec.kv_cache.block_size_tokens == alone.block_size_tokens
    assert spec.kv_cache.size_bytes == alone.kv_cache_bytes
