"""A field of a ModelDeployment that equals its default is no argument: the worker has the same default."""

import pytest

from warmfleet_contracts.resources.model_deployment import ModelDeploymentSpec
from warmfleet_contracts.resources.worker_flags import FIELD_FLAGS, VLLM_FIELD_FLAGS
from warmfleet_worker.settings import WorkerSettings, parse_settings


def worker(*flags: str) -> WorkerSettings:
    return parse_settings(["--model", "m", "--uid", "u", *flags], {})


@pytest.mark.parametrize(("flag", "part", "field"), [*FIELD_FLAGS, *VLLM_FIELD_FLAGS])
def test_a_worker_without_the_flag_has_the_fields_default(flag: str, part: str, field: str) -> None:
    section = ModelDeploymentSpec.model_fields[part].annotation
    assert section is not None
    default = section.model_fields[field].default

    # 0 is "not set" for a worker.
    assert worker(flag, "0" if default is None else str(default)) == worker()
