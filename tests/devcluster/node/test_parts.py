"""Small parts of a process node: images, addresses, /etc files, quantities, its command line, hollow pods."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.resources.quantities import parse_quantity
from warmfleet_devcluster.hollow import hollow_status
from warmfleet_devcluster.node.__main__ import parse_settings
from warmfleet_devcluster.node.errors import ImageError, NodeError
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.host.network import AddressPool
from warmfleet_devcluster.node.pod.etc_files import etc_files
from warmfleet_devcluster.node.references.downward_api import in_units


def test_an_image_that_is_not_listed_cannot_be_pulled(tmp_path):
    listed = tmp_path / "images.json"
    listed.write_text(json.dumps({"images": {"r/a:1": {"entrypoint": ["a"], "user": "5"}}}))
    images = ImageList(listed)
    assert images.find("r/a:1").entrypoint == ("a",)
    with pytest.raises(ImageError, match='Failed to pull image "r/a:2"'):
        images.find("r/a:2")


def test_an_image_that_is_listed_later_can_be_pulled_then(tmp_path):
    listed = tmp_path / "images.json"
    listed.write_text('{"images": {}}')
    images = ImageList(listed)
    with pytest.raises(ImageError):
        images.find("r/a:1")
    (tmp_path / "new.json").write_text(json.dumps({"images": {"r/a:1": {"folder": "/m"}}}))
    (tmp_path / "new.json").replace(listed)
    assert images.find("r/a:1").folder == "/m"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"images": [1]}', '{"images": {"a": 1}}'])
def test_a_list_of_images_that_is_none_is_refused_by_its_name(tmp_path, text):
    listed = tmp_path / "images.json"
    listed.write_text(text)
    with pytest.raises(NodeError, match=r"images\.json"):
        ImageList(listed)


def test_an_address_that_was_given_back_comes_last():
    pool = AddressPool("10.244.7.0/29")
    first = pool.take()
    pool.give_back(first)
    taken = [pool.take() for _ in range(6)]
    assert taken[-1] == first
    assert len(set(taken)) == 6
    with pytest.raises(NodeError, match="no pod addresses left"):
        pool.take()


def test_a_pod_resolves_names_of_its_namespace_first():
    pod = {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["h"]}]},
    }
    files = etc_files(pod, "10.244.0.2", "10.96.0.10", "cluster.local")
    assert files["/etc/resolv.conf"] == (
        "nameserver 10.96.0.10\nsearch n.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
    )
    assert "10.244.0.2\tp\n1.2.3.4\th\n" in files["/etc/hosts"]
    pod["spec"] |= {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"]}}
    assert etc_files(pod, "a", "b", "c")["/etc/resolv.conf"] == "nameserver 9.9.9.9\n"


@given(st.integers(0, 10**12), st.sampled_from(("1", "1m", "1Ki", "1Mi", "1k")))
def test_a_quantity_in_units_is_enough_and_no_unit_too_many(amount, divisor):
    units = in_units(str(amount), divisor)
    assert (units - 1) * parse_quantity(divisor) < amount or amount == units == 0
    assert units * parse_quantity(divisor) >= amount


REQUIRED = {
    "--name": "node-0", "--kubeconfig": "k", "--address": "10.10.0.10", "--pod-cidr": "10.244.0.0/24",
    "--images": "i", "--state": "s", "--client-ca": "c", "--serving-certificate": "sc", "--serving-key": "sk",
}  # fmt: skip


def test_a_node_is_described_by_its_command_line(capsys):
    line = [part for pair in REQUIRED.items() for part in pair]
    settings = parse_settings([*line, "--pretend", "nvidia.com/gpu=2", "--time-ratio", "0.5"])
    assert (settings.pretend, settings.time_ratio, settings.kubelet_port) == (
        {"nvidia.com/gpu": "2"},
        0.5,
        10250,
    )
    for wrong in (line[2:], [*line, "--pretend", "gpu"], [*line, "--nam", "x"]):
        with pytest.raises(SystemExit):
            parse_settings(wrong)
    assert "is not RESOURCE=QUANTITY" in capsys.readouterr().err


def test_a_hollow_pod_is_ready_and_one_that_is_meant_to_end_has_ended():
    pod = {
        "metadata": {"generation": 1},
        "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
    }
    status = hollow_status(pod, "198.18.0.2", "2026-01-01T00:00:00Z")
    assert status["phase"] == "Running"
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    assert status["podIP"] == "198.18.0.2"
    pod["spec"]["restartPolicy"] = "Never"
    assert hollow_status(pod, "198.18.0.2", "2026-01-01T00:00:00Z")["phase"] == "Succeeded"
