"""Files of Secret, ConfigMap, downward API and projected volumes."""

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.errors import VolumeError
from warmfleet_devcluster.node.references.config_objects import ConfigObjects
from warmfleet_devcluster.node.references.downward_api import PodContext
from warmfleet_devcluster.node.volumes.atomic_folder import VolumeFile, write_atomically
from warmfleet_devcluster.node.volumes.contents import referenced_by_volume, volume_files

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c"}]},
}
CONTEXT = PodContext(POD, "10.244.0.2", "10.10.0.10", {"cpu": "4"})
OBJECTS = ConfigObjects(
    secrets={"s": {"data": {"k": base64.b64encode(b"\x00v").decode()}}, "none": None},
    config_maps={"m": {"data": {"x": "1", "y": "2"}, "binaryData": {"z": base64.b64encode(b"3").decode()}}},
)


def files_of(volume):
    return volume_files(volume, CONTEXT, OBJECTS, lambda wanted: f"token for {wanted.get('audience', '')}")


def shown(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith("..")}


def test_every_key_is_a_file():
    assert files_of({"secret": {"secretName": "s"}}) == {"k": VolumeFile(b"\x00v")}
    assert set(files_of({"configMap": {"name": "m"}})) == {"x", "y", "z"}


def test_items_choose_and_rename_and_carry_modes():
    volume = {"configMap": {"name": "m", "defaultMode": 0o400, "items": [
        {"key": "x", "path": "deep/x"}, {"key": "y", "path": "y", "mode": 0o600}]}}  # fmt: skip
    assert files_of(volume) == {"deep/x": VolumeFile(b"1", 0o400), "y": VolumeFile(b"2", 0o600)}


def test_a_projected_volume_is_the_sum_of_its_sources():
    volume = {"projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "audience": "a"}},
        {"configMap": {"name": "m", "items": [{"key": "x", "path": "ca.crt"}]}},
        {"secret": {"name": "s"}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
            {"path": "cpu", "resourceFieldRef": {"resource": "limits.cpu"}}]}},
    ]}}  # fmt: skip
    assert {name: file.content for name, file in files_of(volume).items()} == {
        "token": b"token for a", "ca.crt": b"1", "k": b"\x00v", "namespace": b"n", "cpu": b"4",
    }  # fmt: skip
    assert referenced_by_volume(volume) == ({"s"}, {"m"})


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"configMap": {"name": "m", "items": [{"key": "q", "path": "q"}]}}, "has no key q"),
    ],
)
def test_a_missing_source_is_an_error_unless_it_is_optional(volume, message):
    with pytest.raises(VolumeError, match=message):
        files_of(volume)
    next(iter(volume.values()))["optional"] = True
    assert files_of(volume) == {}


keys = st.sampled_from(("a", "b", "c", "d/e", "d/f"))
contents = st.dictionaries(keys, st.binary(max_size=4).map(VolumeFile), max_size=5)


@given(st.lists(contents, min_size=1, max_size=4))
def test_a_folder_shows_what_was_written_last_and_nothing_older(tmp_path_factory, generations):
    folder = tmp_path_factory.mktemp("volume")
    for files in generations:
        write_atomically(folder, files, None)
        assert not write_atomically(folder, files, None)
        found = {str(path.relative_to(folder)): path.read_bytes() for path in _visible(folder)}
        assert found == {name: file.content for name, file in files.items()}
    # One generation is kept, and the link to it.
    assert len([entry for entry in folder.iterdir() if entry.name.startswith("..")]) == 2


def test_an_open_generation_changes_as_a_whole(tmp_path):
    write_atomically(tmp_path, {"a": VolumeFile(b"1"), "b": VolumeFile(b"1")}, None)
    before = (tmp_path / "..data").readlink()
    assert write_atomically(tmp_path, {"a": VolumeFile(b"2"), "b": VolumeFile(b"2")}, None)
    assert (tmp_path / "..data").readlink() != before
    assert str((tmp_path / "a").readlink()) == "..data/a"
    assert shown(tmp_path) == {"a": b"2", "b": b"2"}


def test_modes_are_those_asked_for_and_readable_by_the_pods_group(tmp_path):
    write_atomically(tmp_path, {"a": VolumeFile(b"", 0o400)}, os.getgid())
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o440


def _visible(folder):
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".."):
            yield from ([path] if path.is_file() else path.iterdir())
