"""What a kubeconfig stands for, and what reading it costs."""

import base64
import json
import os
import ssl
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import yaml

from warmfleet_devcluster.control_plane.certificates import CertificateAuthority
from warmfleet_devcluster.control_plane.kubeconfig import write_kubeconfig
from warmfleet_runtime.kubernetes.config import client_config, plain_context
from warmfleet_runtime.kubernetes.errors import ConfigError


def kubeconfig(cluster=None, user=None, **changes):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "b", "user": "b"}},
            {"name": "here", "context": {"cluster": "a", "user": "a", "namespace": "models"}},
        ],
        "clusters": [
            {"name": "b", "cluster": {"server": "https://b", "proxy-url": "http://proxy"}},
            {"name": "a", "cluster": {"server": "https://a/", **(cluster or {})}},
        ],
        "users": [
            {"name": "b", "user": {"exec": {"command": "login"}}},
            {"name": "a", "user": {"token": "t", **(user or {})}},
        ],
        **changes,
    }


def test_the_current_context_counts_and_other_users_may_need_a_plugin():
    cluster, user = plain_context(kubeconfig())

    assert (cluster.server, user.token) == ("https://a/", "t")


def test_data_is_decoded():
    data = base64.b64encode(b"authority").decode()
    cluster, _ = plain_context(kubeconfig({"certificate-authority-data": data}))

    assert cluster.certificate_authority_data == b"authority"


@pytest.mark.parametrize(
    "document",
    [
        kubeconfig(user={"exec": {"command": "login"}}),
        kubeconfig(user={"auth-provider": {"name": "oidc"}}),
        kubeconfig(user={"tokenFile": "token"}),
        kubeconfig(user={"username": "a", "password": "b"}),
        kubeconfig({"proxy-url": "http://proxy"}),
        kubeconfig({"tls-server-name": "name"}),
        kubeconfig({"insecure-skip-tls-verify": True}),
        kubeconfig({"certificate-authority-data": "no base64!"}),
        kubeconfig(contexts=[]),
        kubeconfig(users=None),
        kubeconfig(**{"current-context": "nowhere"}),
        None,
        [],
        "text",
    ],
)
def test_a_kubeconfig_that_needs_more_than_files_and_a_token_is_left_to_the_package(document):
    assert plain_context(document) is None


def content(path):
    return Path(path).read_bytes()


async def test_both_readers_find_the_same_in_a_plain_kubeconfig(tmp_path):
    authority = CertificateAuthority(tmp_path / "pki")
    user = authority.client("admin", user="admin", groups=[])
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, server="https://127.0.0.1:1", authority=authority.files.certificate, user=user)
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"]["tls-server-name"] = "server"
    through_package = tmp_path / "kubeconfig-for-the-package"
    through_package.write_text(yaml.safe_dump(document))

    contents = []
    for config_path in (path, through_package):
        async with client_config(config_path) as config:
            paths = (config.ca_path, config.certificate_path, config.key_path)
            contents.append([content(name) for name in paths])
            assert config.server == "https://127.0.0.1:1"
            assert await config.authorization() is None
            context = config.tls()
            assert context.verify_mode is ssl.CERT_REQUIRED
            assert context.get_ca_certs()
        assert config.tls_server_name == (None if config_path == path else "server")

    assert contents[0] == contents[1]
    assert contents[0][0] == authority.files.certificate.read_bytes()


def open_files():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def link(path):
    return str(Path(path).readlink())


async def test_a_key_that_a_kubeconfig_holds_as_data_is_never_a_file_on_disk(tmp_path):
    authority = CertificateAuthority(tmp_path / "pki")
    path = tmp_path / "kubeconfig"
    write_kubeconfig(
        path,
        server="https://127.0.0.1:1",
        authority=authority.files.certificate,
        user=authority.client("admin", user="admin", groups=[]),
    )
    before = open_files()
    async with client_config(path) as config:
        assert link(config.key_path).startswith("/memfd:")

    assert open_files() == before


async def test_paths_are_relative_to_the_kubeconfig(tmp_path):
    authority = CertificateAuthority(tmp_path / "pki")
    authority.server("server", names=["localhost"], addresses=[IPv4Address("127.0.0.1")])
    relative = authority.files.certificate.relative_to(tmp_path)
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig({"certificate-authority": str(relative)})))
    async with client_config(path) as config:
        assert config.tls().get_ca_certs()
        assert config.server == "https://a"
        assert await config.authorization() == "Bearer t"


async def test_an_exec_plugin_is_run(tmp_path):
    version = "client.authentication.k8s.io/v1"
    credential = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "x"}})
    plugin = {
        "exec": {
            "apiVersion": version,
            "command": sys.executable,
            "args": ["-c", f"print('{credential}')"],
            "interactiveMode": "Never",
        }
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig(user=plugin)))
    async with client_config(path) as config:
        assert await config.authorization() == "Bearer x"


@pytest.mark.parametrize("content", [None, "", "{", "[]", yaml.safe_dump(kubeconfig(users=None))])
async def test_a_kubeconfig_that_cannot_be_used_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="kubeconfig") as caught:
        async with client_config(path):
            pass

    assert caught.value.summary == f"the cluster's kubeconfig {path} cannot be used"
    assert caught.value.message


async def test_without_a_service_account_a_pods_configuration_is_an_error(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="service account cannot be used"):
        async with client_config(None):
            pass


def test_the_kubernetes_package_is_not_imported_for_a_plain_kubeconfig(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig()))
    script = f"""
import asyncio, pathlib, sys
from warmfleet_runtime.kubernetes.client import KubernetesClient

async def connect():
    async with KubernetesClient.connect(pathlib.Path({str(path)!r}), user_agent="test"):
        pass

asyncio.run(connect())
sys.exit("kubernetes" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ, timeout=60, check=False)

    assert ended.returncode == 0
