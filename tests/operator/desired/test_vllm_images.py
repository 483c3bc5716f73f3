"""Which image a worker with vLLM gets, and what its model may be."""

from dataclasses import replace

import pytest

from warmfleet_operator.desired.errors import UnsupportedError
from warmfleet_testing.resources.desired_specs import (
    GPU_FROM_THE_HUB_ON_A_CLAIM,
    MINIMAL,
    SETTINGS,
    desired,
    pod_template,
)

RELEASE = replace(SETTINGS, worker_vllm_image="registry.example/warmfleet/worker-vllm:1")
ON_A_GPU = {**MINIMAL, "engine": {"type": "VLLM"}, "accelerator": {}}


def images(spec, settings=RELEASE):
    pod = pod_template(spec, settings)["spec"]
    return {item["image"] for item in (*pod["containers"], *pod.get("initContainers", ()))}


def test_a_worker_with_vllm_runs_the_releases_image_for_it_or_its_own():
    assert images(ON_A_GPU) == {"registry.example/warmfleet/worker-vllm:1"}
    own = {"type": "VLLM", "image": "registry.example/ours:2"}
    assert images({**ON_A_GPU, "engine": own}) == {"registry.example/ours:2"}
    assert images({**MINIMAL, "engine": own}) == {"registry.example/ours:2"}  # a CPU build
    assert images({**MINIMAL, "accelerator": {}}) == {SETTINGS.worker_cuda_image}


@pytest.mark.parametrize(
    ("spec", "settings", "field"),
    [
        ({**ON_A_GPU}, SETTINGS, "spec.engine.image"),
        ({**MINIMAL, "engine": {"type": "VLLM"}}, RELEASE, "spec.accelerator"),
    ],
)
def test_without_a_fitting_image_the_field_is_named(spec, settings, field):
    with pytest.raises(UnsupportedError) as refused:
        desired(spec, settings)
    assert refused.value.field == field


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_only_for_vllm_any_architecture_is_fetched(kind):
    def fetches(spec):
        pod = pod_template(spec, RELEASE, kind=kind)["spec"]
        (fetch,) = pod["initContainers"] if kind == "Deployment" else pod["containers"]
        return fetch["args"]

    own = fetches(GPU_FROM_THE_HUB_ON_A_CLAIM)
    vllm = fetches({**GPU_FROM_THE_HUB_ON_A_CLAIM, "engine": {"type": "VLLM"}})
    assert "--any-architecture" not in own
    assert [word for word in vllm if word != "--any-architecture"] == own
    assert len(vllm) == len(own) + 1
