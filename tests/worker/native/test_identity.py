"""Blocks of kernels that round differently are not those of one another."""

import msgspec
import pytest

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine_process import build_engine
from warmfleet_worker.native import model as native_model
from warmfleet_worker.settings import EngineSettings


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tiny_model_folder("llama", tmp_path_factory.mktemp("llama"))
    return EngineSettings(model_path=str(folder), dtype="Float32", kv_cache_bytes=2**20, threads=1)


def ready_of(settings, **changes):
    _, ready, _ = build_engine(msgspec.structs.replace(settings, **changes), "ab" * 32)
    return ready


def test_each_level_has_an_identity_of_its_own(settings):
    found = [ready_of(settings, cpu_kernels=kernels) for kernels in ("Torch", "AVX2", "Auto")]

    assert [(ready.kernels == "torch", ready.exact) for ready in found[:2]] == [(True, False), (False, True)]
    assert found[2].exact
    assert len({ready.identity for ready in found}) == len({ready.kernels for ready in found})
    assert ready_of(settings).identity == found[2].identity


def test_quantised_weights_have_an_identity_of_their_own(settings):
    found = [ready_of(settings, weight_quantization=quantization) for quantization in ("None", "Int8")]

    assert found[0].identity != found[1].identity
    assert [ready.exact for ready in found] == [True, True]


def test_another_revision_of_the_sources_has_another_identity(settings, monkeypatch):
    before = ready_of(settings)
    monkeypatch.setattr(native_model, "source_hash", lambda: "another")

    assert ready_of(settings).identity != before.identity
