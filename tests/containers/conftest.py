"""Images that are built and the real node that runs them, once for all tests here."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from warmfleet_devcluster.control_plane.binaries import KUBELET, find_binaries
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.cluster.cluster import DevCluster, running_cluster
from warmfleet_testing.cluster.pods import IMAGE, Pods, namespace_of_its_own
from warmfleet_testing.containers.air_gapped import (
    CarriedTree,
    carried_tree,
    commands,
    image_name,
)
from warmfleet_testing.containers.builder import (
    ImageStore,
    image_store,
    import_image,
    reference,
    tag_image,
)
from warmfleet_testing.containers.figures import Figures
from warmfleet_testing.containers.machine import most_disk_taken, nothing_left
from warmfleet_testing.containers.release import Release

FIRST_TARGETS = ("operator", "router")
FOLDER = Path(__file__).parent
ORDER = (
    "test_builder_faults",
    "test_killed_node",  # has a real node of its own: a machine has one at a time
    "test_operator_and_router",  # counts restarts and models of a release that nothing else has used
    "test_other_python",
    "test_pods_of_a_real_node",
    "test_served_model",  # brings the worker's image to the node
    "test_without_internet",  # ends the release and installs another one
)
"""All tests share one node and one release."""
FREE_BYTES = 12e9
"""What all images take at most: in the store, as archives, and on the node."""
KEEP = bool(os.environ.get("KEEP"))
"""`make check-containers KEEP=1`: the images stay for the next run."""
_FIGURES = pytest.StashKey[Figures]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the modules in the order of `ORDER`, and require each to be in it."""
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.parent == FOLDER else -1)


def pytest_configure(config: pytest.Config) -> None:
    """A place for what the tests measure."""
    config.stash[_FIGURES] = Figures()


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """What was measured; pytest's own summary follows."""
    if lines := config.stash[_FIGURES].lines():
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """What tests put here is printed at the end."""
    return request.config.stash[_FIGURES]


@pytest.fixture(scope="session")
def store(figures: Figures) -> Iterator[ImageStore]:
    """A store with the base image; empty but for it, unless the run before kept its images."""
    folder = warmfleet_home() / "check-containers"
    with nothing_left(folder), image_store(folder, keep=KEEP) as store, most_disk_taken(figures):
        if KEEP:
            store.shell("buildah rm --all")  # what builds were about to write that were killed
        with figures.timed("base image made"):
            store.make_base()
        yield store


@pytest.fixture(scope="session")
def built(store: ImageStore, figures: Figures) -> str:
    """Operator and router; gives what the builder printed."""
    with figures.timed("operator and router built"):
        return store.build(*FIRST_TARGETS)


@pytest.fixture(scope="session")
def carried(store: ImageStore, built: str) -> Iterator[CarriedTree]:
    """The tree, into which archives of all images are written while tests run that need none of them."""
    folders = (warmfleet_home(), tempfile.gettempdir())  # of the builder, of the node
    free = min(shutil.disk_usage(folder).free for folder in folders)
    assert free > FREE_BYTES, f"{FREE_BYTES / 1e9:.0f} GB are needed, {free / 1e9:.0f} are free"
    with carried_tree(store) as tree:
        yield tree


@pytest.fixture(scope="session")
def needs_worker_image(request: pytest.FixtureRequest) -> bool:
    """Whether a test of this run needs the image of CPU workers."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    return any("worker_image" in function.fixturenames for function in functions)


@pytest.fixture(scope="session")
def cluster(
    store: ImageStore,
    built: str,
    figures: Figures,
    tmp_path_factory: pytest.TempPathFactory,
    needs_worker_image: bool,
    request: pytest.FixtureRequest,
) -> Iterator[DevCluster]:
    """One real node that has the images of operator and router."""
    if needs_worker_image:
        request.getfixturevalue("carried")  # begins now, and takes minutes
    programs = find_binaries(warmfleet_home(), KUBELET).folder
    began = time.monotonic()
    with running_cluster(nodes=0, pretend={}, real_node=programs) as running:
        figures.add("cluster and its node ready", time.monotonic() - began)
        socket = running.folder.part("node-0") / "containerd.sock"
        for target in FIRST_TARGETS:
            import_image(store, target, socket, tmp_path_factory.mktemp("pipes"))
        yield running


@pytest.fixture(scope="session")
def release(cluster: DevCluster, figures: Figures, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The chart, installed with the built images; all its pods have become ready."""
    installed = Release(cluster)
    with figures.timed("helm install --wait"):
        installed.install(tmp_path_factory.mktemp("values") / "values.yaml", *FIRST_TARGETS, "worker-cpu")
    return installed


@pytest.fixture(scope="session")
def worker_image(cluster: DevCluster, release: Release, carried: CarriedTree, figures: Figures) -> None:
    """The image of CPU workers with its model on the node, by the name that `reference` has for it.

    It comes there by the commands of docs/how-to/air-gapped.md, which stand for any other way.
    """
    figures.add(
        "worker-cpu built, archives of all images written, beside tests", carried.archived_after_seconds()
    )
    with figures.timed("archives imported"):
        carried.run_without_internet(cluster, commands().on_nodes)
    carried.remove_archives()
    socket = cluster.folder.part("node-0") / "containerd.sock"
    tag_image(socket, image_name("worker-cpu"), reference("worker-cpu"))


@pytest.fixture(scope="session")
def plain_image(cluster: DevCluster) -> str:
    """The image of plain pods, by the name that it has on process nodes: a router's, which has Python."""
    tag_image(cluster.folder.part("node-0") / "containerd.sock", reference("router"), IMAGE)
    return IMAGE


@pytest.fixture
def pods(cluster: DevCluster, plain_image: str, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """A namespace of the test's own, for plain pods."""
    with namespace_of_its_own(cluster, request.node.originalname) as own:
        yield own
