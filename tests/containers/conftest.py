"""Images that are built and the real node that runs them, once for all tests here."""

import shutil
from collections.abc import Iterator

import pytest

from warmfleet_devcluster.control_plane.binaries import KUBELET, find_binaries
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.cluster.cluster import DevCluster, running_cluster
from warmfleet_testing.cluster.pods import IMAGE, Pods, namespace_of_its_own
from warmfleet_testing.containers.builder import ImageStore, image_store, import_image, tag_image
from warmfleet_testing.containers.machine import nothing_left
from warmfleet_testing.containers.release import Release

FIRST_TARGETS = ("operator", "router")
MODEL = "smollm2-135m-instruct"
FREE_BYTES = 38e9


@pytest.fixture(scope="session")
def store() -> Iterator[ImageStore]:
    """An empty store with the base image."""
    folder = warmfleet_home() / "check-containers"
    with nothing_left(folder), image_store(folder) as store:
        store.make_base()
        yield store


@pytest.fixture(scope="session")
def built(store: ImageStore) -> str:
    """Operator and router; gives what the builder printed."""
    return store.build(*FIRST_TARGETS)


@pytest.fixture(scope="session")
def cluster(store: ImageStore, built: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """One real node that has the images of operator and router."""
    programs = find_binaries(warmfleet_home(), KUBELET).folder
    with running_cluster(nodes=0, pretend={}, real_node=programs) as running:
        socket = running.folder.part("node-0") / "containerd.sock"
        for target in FIRST_TARGETS:
            import_image(store, target, socket, tmp_path_factory.mktemp("pipes"))
        yield running


@pytest.fixture(scope="session")
def release(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The chart, installed with the built images; all its pods have become ready."""
    installed = Release(cluster)
    installed.install(tmp_path_factory.mktemp("values") / "values.yaml", *FIRST_TARGETS, "worker-cpu")
    return installed


@pytest.fixture(scope="session")
def worker_image(
    store: ImageStore, cluster: DevCluster, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The image of CPU workers with its model, on the node; gives what the builder printed."""
    free = shutil.disk_usage(warmfleet_home()).free
    assert free > FREE_BYTES, f"the worker's image needs 38 GB, {free / 1e9:.0f} are free"
    printed = store.build("worker-cpu", catalog_model=MODEL)
    socket = cluster.folder.part("node-0") / "containerd.sock"
    import_image(store, "worker-cpu", socket, tmp_path_factory.mktemp("pipes"))
    return printed


@pytest.fixture(scope="session")
def plain_image(cluster: DevCluster) -> str:
    """The image of plain pods, by the name that it has on process nodes: a router's, which has Python."""
    tag_image(cluster.folder.part("node-0") / "containerd.sock", "router", IMAGE)
    return IMAGE


@pytest.fixture
def pods(cluster: DevCluster, plain_image: str, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """A namespace of the test's own, for plain pods."""
    with namespace_of_its_own(cluster, request.node.originalname) as own:
        yield own
