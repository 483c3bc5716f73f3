"""Control groups outlive a node's processes; what is removed, in a tree of folders."""

import pytest

from warmfleet_devcluster.real_node.cgroups import remove_node_cgroups


@pytest.fixture
def hierarchy(tmp_path):
    for name in ("memory", "cpu,cpuacct"):
        (tmp_path / name / "kubepods" / "burstable" / "pod1" / "c1").mkdir(parents=True)
        (tmp_path / name / "system.slice").mkdir()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    return tmp_path


def test_groups_of_pods_go_in_every_hierarchy_and_all_others_stay(hierarchy):
    (hierarchy / "memory" / "k8s.io" / "c2").mkdir(parents=True)
    assert remove_node_cgroups(hierarchy) == []
    assert not list(hierarchy.rglob("kubepods"))
    assert not list(hierarchy.rglob("k8s.io"))
    assert (hierarchy / "memory" / "system.slice").is_dir()


def test_groups_of_version_2_stand_at_the_root(tmp_path):
    (tmp_path / "kubepods" / "pod1").mkdir(parents=True)
    (tmp_path / "user.slice").mkdir()
    assert remove_node_cgroups(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["user.slice"]


def test_a_group_that_is_still_in_use_is_named(hierarchy):
    used = hierarchy / "memory" / "kubepods" / "burstable"
    (used / "tasks").write_text("1")  # a folder that cannot be removed, as a group with processes
    left = remove_node_cgroups(hierarchy, seconds=0.0)
    assert left == [used, used.parent]
