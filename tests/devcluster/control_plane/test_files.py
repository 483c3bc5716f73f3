"""What the control plane is started with: flags, certificates, kubeconfigs, addresses, images."""

import ssl
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from warmfleet_devcluster.control_plane.certificates import CertificateAuthority
from warmfleet_devcluster.control_plane.credentials import Credentials
from warmfleet_devcluster.control_plane.flags import (
    api_server_flags,
    controller_manager_flags,
    etcd_flags,
    scheduler_flags,
)
from warmfleet_devcluster.errors import DevclusterError
from warmfleet_devcluster.lifecycle.images import image_list, image_values
from warmfleet_devcluster.lifecycle.plans import node_plan
from warmfleet_devcluster.network.addresses import (
    API_SERVER_ADDRESS,
    DNS_ADDRESS,
    KUBERNETES_SERVICE_ADDRESS,
    MAX_NODES,
    NODE_NETWORK,
    POD_NETWORK,
    SERVICE_NETWORK,
    node_address,
    pod_network,
)
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import StateFolder


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(StateFolder(tmp_path), "https://127.0.0.1:40000")


def flags_of(lines: list[str]) -> dict[str, str]:
    return dict(line.removeprefix("--").split("=", 1) for line in lines)


def test_no_two_nodes_share_an_address_and_all_networks_are_apart() -> None:
    addresses = {node_address(index) for index in range(MAX_NODES)} | {API_SERVER_ADDRESS}
    assert len(addresses) == MAX_NODES + 1
    assert all(address in NODE_NETWORK for address in addresses)
    networks = [pod_network(index) for index in range(MAX_NODES)]
    assert len(set(networks)) == MAX_NODES
    assert all(network.subnet_of(POD_NETWORK) for network in networks)
    assert DNS_ADDRESS in SERVICE_NETWORK
    assert SERVICE_NETWORK[1] == KUBERNETES_SERVICE_ADDRESS
    assert not NODE_NETWORK.overlaps(POD_NETWORK)
    assert not SERVICE_NETWORK.overlaps(POD_NETWORK)


def test_every_file_in_a_components_flags_exists_and_only_its_owner_reads_it(
    credentials: Credentials,
) -> None:
    files = credentials.control_plane()
    everything = flags_of(
        [
            *api_server_flags(files),
            *controller_manager_flags(files, 20),
            *scheduler_flags(files),
            *etcd_flags(files),
        ]
    )
    written_later = {"data-dir", "audit-log-path"}
    paths = {name: Path(value) for name, value in everything.items() if value.startswith("/")}
    assert written_later < paths.keys()
    for name in paths.keys() - written_later:
        assert paths[name].is_file(), name
        assert paths[name].stat().st_mode & 0o077 == 0, name


def test_the_components_are_as_fast_as_a_scale_test_needs(credentials: Credentials) -> None:
    files = credentials.control_plane()
    for flags in (flags_of(controller_manager_flags(files, 20)), flags_of(scheduler_flags(files))):
        assert (flags["kube-api-qps"], flags["kube-api-burst"]) == ("300", "600")
    assert flags_of(api_server_flags(files))["authorization-mode"] == "Node,RBAC"


def test_a_kubeconfig_holds_one_context_and_all_that_it_needs(
    tmp_path: Path, credentials: Credentials
) -> None:
    document = yaml.safe_load(StateFolder(tmp_path).kubeconfig.read_text())
    assert document["current-context"] == "warmfleet-devcluster"
    assert [context["name"] for context in document["contexts"]] == ["warmfleet-devcluster"]
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:40000"
    assert "insecure-skip-tls-verify" not in document["clusters"][0]["cluster"]
    assert set(document["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}


def test_a_node_is_known_as_itself_and_its_server_by_its_address(credentials: Credentials) -> None:
    own = credentials.node(3)
    serving = x509.load_pem_x509_certificate(own.serving.certificate.read_bytes())
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [IPv4Address("10.10.0.13")]
    user = x509.load_pem_x509_certificate((own.kubeconfig.parent / "node-3.crt").read_bytes())
    assert [a.value for a in user.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "system:node:node-3"
    ]
    assert [a.value for a in user.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "system:nodes"
    ]


def test_a_certificate_and_its_key_belong_together_under_the_authority(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    pair = authority.client("client", user="u", groups=["g"])
    context = ssl.create_default_context(cafile=str(authority.files.certificate))
    context.load_cert_chain(pair.certificate, pair.key)  # raises unless they match
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate(authority.files.certificate.read_bytes())
    )


def test_a_nodes_command_line_carries_the_pretended_resources(
    tmp_path: Path, credentials: Credentials
) -> None:
    settings = DevclusterSettings(
        state=tmp_path, home=tmp_path, binaries=tmp_path, pretend={"nvidia.com/gpu": 2, "example.com/x": 1}
    )
    argv = node_plan(1, settings, StateFolder(tmp_path), credentials.node(1), "/ca").argv
    pretended = [argv[index + 1] for index, part in enumerate(argv) if part == "--pretend"]
    assert pretended == ["nvidia.com/gpu=2", "example.com/x=1"]
    assert argv[argv.index("--pod-cidr") + 1] == "10.244.1.0/24"


@pytest.mark.parametrize("field", [{"nodes": -1}, {"nodes": 65}, {"hollow": 201}, {"pretend": {"x": -1}}])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, field: dict[str, object]) -> None:
    with pytest.raises(DevclusterError):
        DevclusterSettings(state=tmp_path, home=tmp_path, binaries=tmp_path, **field)


def test_the_charts_values_name_images_that_are_on_the_list() -> None:
    values = image_values("1.2.3")["images"]
    registry = values.pop("registry")
    named = {f"{registry}/{image['repository']}:{image['tag']}" for image in values.values()}
    listed = image_list("1.2.3", Path("/home"), {"PYTHONPATH": "/src", "SECRET": "no"})
    assert set(listed) == named
    for image in listed.values():
        assert image["user"] == "65532"
        assert image["env"]["WARMFLEET_IMAGE_HOME"] == "/home"
        assert image["env"]["PYTHONPATH"] == "/src"
        assert "SECRET" not in image["env"]
