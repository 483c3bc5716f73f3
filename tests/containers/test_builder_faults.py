"""A builder that is killed, a disk that is full in a build or an import: the next run works."""

import json
import shlex

import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.containers.builder import BASE, image_store, reference
from warmfleet_testing.containers.machine import processes_of, traces

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]

# A disk of its own, which ends with the script's mount namespace.
BUILD_ON_A_SMALL_DISK = """
small=$(mktemp --directory)
mount -t tmpfs -o size={size} tmpfs "$small"
printf '[storage]\\ndriver = "overlay"\\ngraphroot = "%s/store"\\nrunroot = "%s/run"\\n' "$small" "$small" \\
  > "$small/conf"
export CONTAINERS_STORAGE_CONF=$small/conf
buildah pull --quiet docker-archive:{archive} > /dev/null
if output=$({build} 2>&1); then echo "it fits"; exit 9; fi
echo "$output" | grep --only-matching --ignore-case "no space left on device" | head -1
mount -o remount,size=4g "$small"
{build} > /dev/null
buildah images --format '{{{{.Name}}}}' {image}
"""
IMPORT_ON_A_SMALL_DISK = """
small=$(mktemp --directory)
mount -t tmpfs -o size=100m tmpfs "$small"
export CONTAINERD_ADDRESS=$small/containerd.sock
printf 'version = 2\\nroot = "%s/root"\\nstate = "%s/state"\\n[grpc]\\naddress = "%s"\\n' \\
  "$small" "$small" "$CONTAINERD_ADDRESS" > "$small/conf"
containerd --config "$small/conf" --log-level fatal > "$small/log" 2>&1 &
until ctr version > /dev/null 2>&1; do sleep 0.2; done
if output=$(ctr images import {archive} 2>&1); then echo "it fits"; exit 9; fi
echo "$output" | grep --only-matching "no space left on device" | head -1
mount -o remount,size=4g "$small"
ctr images import {archive} > /dev/null
ctr images list --quiet
"""


@pytest.fixture
def archive(store):
    """Where a test writes an image; gone afterwards."""
    file = store.folder / "image.tar"
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture
def own_store(store, archive, tmp_path):
    """A store that has the base image and no layer of a build."""
    store.export(BASE, archive)
    with image_store(tmp_path / "store") as own:
        own.shell(f"buildah pull --quiet docker-archive:{shlex.quote(str(archive))}")
        yield own


def test_the_build_after_one_that_was_killed_in_the_middle_works(own_store):
    before = traces(own_store.folder)
    containers = own_store.folder / "store" / "overlay-containers" / "containers.json"

    def is_running_a_step():
        return containers.exists() and json.loads(containers.read_text() or "[]")

    with own_store.begin(*own_store.build_command("router")) as building:
        eventually(is_running_a_step, seconds=120)
        building.kill()
    eventually(lambda: processes_of("buildah", reference("router")), [])
    assert traces(own_store.folder) == before
    assert "warmfleet-router" in own_store.build("router")


def test_a_build_whose_disk_is_full_is_named_and_succeeds_when_there_is_room(store, archive):
    store.export(BASE, archive)
    script = BUILD_ON_A_SMALL_DISK.format(
        size="250m",
        archive=shlex.quote(str(archive)),
        build=shlex.join(store.build_command("router")),
        image=reference("router"),
    )
    assert store.shell(script).lower().splitlines() == [
        "no space left on device",
        reference("router").rpartition(":")[0],
    ]


def test_an_import_whose_disk_is_full_is_named_and_succeeds_when_there_is_room(store, archive):
    store.build("router")
    store.export(reference("router"), archive)
    output = store.shell(IMPORT_ON_A_SMALL_DISK.format(archive=shlex.quote(str(archive))))
    assert output.splitlines() == ["no space left on device", reference("router")]
