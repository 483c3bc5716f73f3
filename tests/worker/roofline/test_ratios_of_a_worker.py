"""From the engine's steps to the worker's metric, on a tiny model with limits that were measured before."""

import secrets
import socket
import threading

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.messages import StepReport, decode_engine_message, encode_message, message_reader
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine_process import ServerChannel, ServerGoneError, build_engine, idle_messages, serve
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.cost import model_cost
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.roofline.limits_file import limits_path, write_limits
from warmfleet_worker.settings import EngineSettings

LIMITS = MachineLimits(
    read_bytes_per_second=1e12,
    read_threads=2,
    buffer_bytes=2**31,
    bfloat16_flops_per_second=1e15,
    float32_flops_per_second=1e15,
)


@pytest.fixture
def engine_and_roofline(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "home"))
    write_limits(limits_path(), LIMITS)
    folder = tiny_model_folder("llama", tmp_path / "model")
    settings = EngineSettings(model_path=str(folder), kv_cache_bytes=2**20, threads=1)
    engine, _, roofline = build_engine(settings, "00" * 32)
    return engine, roofline


def test_an_engines_reports_have_the_ratios_of_its_phases(engine_and_roofline):
    engine, roofline = engine_and_roofline
    ours, theirs = socket.socketpair()

    def run():
        with pytest.raises(ServerGoneError):
            serve(engine, ServerChannel(theirs), roofline=roofline)

    server = threading.Thread(target=run)
    reports, frames = [], message_reader()
    with theirs:
        with ours:
            ours.sendall(encode_message(add_sequence(1, range(40), SamplingParameters(max_output_tokens=4))))
            server.start()
            while not reports or not any(update.finish_reason for update in reports[-1].updates):
                reports += map(decode_engine_message, frames.feed(ours.recv(65536)))
        server.join()

    steps = [report for report in reports if report.scheduled_tokens]
    assert 0 < steps[0].prefill_roofline_ratio < 1
    assert steps[0].decode_roofline_ratio == 0
    assert 0 < steps[-1].decode_roofline_ratio < 1


def test_messages_end_a_measurement(engine_and_roofline):
    calls = []

    class Roofline:
        def advance(self):
            calls.append("advance")
            if len(calls) == 3:
                ours.sendall(encode_message(add_sequence(1, [1], SamplingParameters())))
            return True

        def interrupt(self):
            calls.append("interrupt")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages = idle_messages(ServerChannel(theirs), Roofline())

    assert len(messages) == 1
    assert calls == ["advance", "advance", "advance", "interrupt"]


def test_the_metric_is_absent_until_ratios_are_known():
    metrics = WorkerMetrics("tiny")
    load = LoadReport()

    metrics.on_report(StepReport(load=load))
    assert samples(metrics) == {}

    metrics.on_report(StepReport(load=load, decode_roofline_ratio=0.75))
    assert samples(metrics) == {"decode": 0.75}
    metrics.on_report(StepReport(load=load))
    assert samples(metrics) == {"decode": 0.75}


def samples(metrics):
    return {
        sample.labels["phase"]: sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == "warmfleet_worker_roofline_ratio"
    }


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_models_cost_counts_every_weight_that_a_decode_reads(family, tmp_path):
    folder = tiny_model_folder(family, tmp_path / secrets.token_hex(4))
    config = load_model_config(folder)
    cost = model_cost(config, 4)

    decoder = load_decoder(folder, config, positions=64, dtype=torch.float32, device=torch.device("cpu"))
    layers = sum(tensor.numel() for layer in decoder.layers for tensor in tensors(layer))
    assert cost.layer_weights == layers
    assert cost.head_weights == decoder.embedding.numel()
    assert cost.kv_bytes_per_token == 2 * config.layers * config.kv_heads * config.head_dim * 4


def tensors(value):
    """Every tensor below a layer's modules."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    names = getattr(value, "__dataclass_fields__", None) or getattr(value, "__dict__", {})
    for name in names:
        yield from tensors(getattr(value, name))
