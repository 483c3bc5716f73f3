"""The chart on a cluster whose nodes run pods, and the tiny model on it."""

from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.cluster.installed import Installed, tiny_deployment

NATIVE_STEP = "from warmfleet_worker.native.build import library_path; print(library_path())"


def test_a_model_is_served_through_the_routers_service(models: Installed) -> None:
    models.apply(tiny_deployment("first", replicas=2))
    models.wait_ready("first")

    first = models.chat("first", "hello")
    again = models.chat(f"{models.namespace}/first", "hello")

    assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]
    assert first["usage"]["completion_tokens"] > 0
    nodes = {pod["spec"]["nodeName"] for pod in models.pods("first")}
    assert nodes == {"node-0", "node-1"}
    for pod in models.pods("first"):
        # A pod that compiled it for itself had two cores busy for 12 s before it was ready.
        step = models.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", NATIVE_STEP)
        assert step.startswith(str(warmfleet_home() / "native"))
    models.delete("first")
