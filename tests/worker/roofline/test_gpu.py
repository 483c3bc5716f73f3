"""Limits of a GPU, where there is one."""

import json

import pytest
import torch

from warmfleet_worker.roofline.__main__ import main
from warmfleet_worker.roofline.gpu import measure_gpu


def test_without_a_gpu_there_are_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measure_gpu() is None


@pytest.mark.gpu
def test_the_limits_of_a_gpu_are_measured_and_not_those_of_the_processors(capsys):
    assert main([]) == 0
    limits = json.loads(capsys.readouterr().out)
    assert limits["gpu"] == torch.cuda.get_device_name()
    assert limits["read_threads"] == 0
    assert limits["read_bytes_per_second"] > 1e11
    assert limits["bfloat16_flops_per_second"] > limits["float32_flops_per_second"] > 1e12
