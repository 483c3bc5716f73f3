"""Process nodes do what a kubelet does: one list of tests for both, and what only these nodes do."""

from pathlib import Path

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.pods import IMAGE, Pods, main, pod
from warmfleet_testing.node_suite.node_api import *  # noqa: F403 - its tests are collected here
from warmfleet_testing.node_suite.pods import *  # noqa: F403 - its tests are collected here


def test_an_image_that_lies_in_tmp_is_whole_under_a_pods_own_tmp(pods: Pods, tmp_path: Path) -> None:
    """A tree cloned into /tmp, as warmfleet's pods see it: all of them have a volume there."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "beside").write_text("found")
    image = "registry.devcluster.local/test/in-tmp:1"
    pods.cluster.add_image(image, like=IMAGE, paths=[str(tmp_path / "programs")])
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    script = (
        f"echo mine > /tmp/x && cat /tmp/x {tmp_path}/beside; touch {tmp_path}/y 2>/dev/null || echo refused"
    )
    ends = main(script, image=image, volumeMounts=mounts)
    volumes = [{"name": "tmp", "emptyDir": {}}]
    first = [{**ends, "name": "first"}]  # the volume is not as new for the one that follows
    pods.apply(pod("reads", ends, initContainers=first, volumes=volumes, restartPolicy="Never"))
    eventually(lambda: pods.phase("reads"), "Succeeded")
    assert pods.kubectl("logs", "reads", "-c", "main").split() == ["mine", "foundrefused"]
