"""Where the API server is and as whom it is asked: from a kubeconfig, or from the pod's service account.

A kubeconfig of certificates or a token is read here, because importing the `kubernetes` package costs half a
second and 23 MB. Everything else (exec plugins, auth providers, proxies, the service account and its rotating
token) is that package's part.
"""

import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from warmfleet_runtime.kubernetes.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How one API server is reached, and as whom; client-go calls it a `rest.Config`."""

    server: str
    """URL without a slash at its end."""
    ca_path: str | None
    """PEM file of the authorities that the server's certificate is verified by; None: the system's."""
    certificate_path: str | None
    """PEM file of the client's certificate, if that is how it authenticates."""
    key_path: str | None
    authorization: Callable[[], Awaitable[str | None]]
    """Returns the Authorization header to send now: tokens change over time. Raises ConfigError."""
    verifies_server: bool = True
    tls_server_name: str | None = None
    """The name in the server's certificate where it is not the URL's."""
    proxy_url: str | None = None

    def tls(self) -> ssl.SSLContext:
        """A context with these certificates; raises OSError or ValueError if they cannot be loaded."""
        context = ssl.create_default_context(cafile=self.ca_path)
        if self.certificate_path is not None:
            context.load_cert_chain(self.certificate_path, self.key_path)
        if not self.verifies_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@asynccontextmanager
async def client_config(kubeconfig: Path | None) -> AsyncGenerator[ClientConfig, None]:
    """The current context of `kubeconfig`; without one, the service account of the pod that this runs in.

    Files that the configuration names can be read for as long as the context is open.

    Raises:
        ConfigError: it is missing, incomplete or unusable.
    """
    where = f"kubeconfig {kubeconfig}" if kubeconfig is not None else "service account"
    with ExitStack() as files:
        try:
            found = _from_plain(kubeconfig, files) if kubeconfig is not None else None
            if found is None:
                found = await _from_package(kubeconfig)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"the cluster's {where} cannot be used", message=str(error)) from error
        yield found


class PlainCluster(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A `cluster` of a kubeconfig that needs nothing but a verified connection."""

    server: str
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""


class PlainUser(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A `user` of a kubeconfig whose credentials are all in the kubeconfig or in files."""

    client_certificate: str = ""
    client_certificate_data: bytes = b""
    client_key: str = ""
    client_key_data: bytes = b""
    token: str = ""


class PlainContext(NamedTuple):
    """What a kubeconfig's current context stands for."""

    cluster: PlainCluster
    user: PlainUser


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: dict[str, Any]


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: dict[str, Any]


class _Kubeconfig(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str
    contexts: list[_NamedContext]
    clusters: list[_NamedCluster]
    users: list[_NamedUser]


def plain_context(kubeconfig: object) -> PlainContext | None:
    """Cluster and user of a kubeconfig's current context; None if they need more than files and a token.

    Also None for a kubeconfig that is incomplete: the `kubernetes` package names what is missing.
    """
    try:
        config = msgspec.convert(kubeconfig, _Kubeconfig)
        context = next(one.context for one in config.contexts if one.name == config.current_context)
        cluster = next(one.cluster for one in config.clusters if one.name == context.cluster)
        user = next(one.user for one in config.users if one.name == context.user)
        return PlainContext(msgspec.convert(cluster, PlainCluster), msgspec.convert(user, PlainUser))
    except (msgspec.ValidationError, StopIteration):
        return None


def _from_plain(kubeconfig: Path, files: ExitStack) -> ClientConfig | None:
    context = plain_context(yaml.safe_load(kubeconfig.read_text()))
    if context is None:
        return None
    (cluster, user), folder = context, kubeconfig.parent

    async def authorization() -> str | None:
        return f"Bearer {user.token}" if user.token else None

    return ClientConfig(
        server=cluster.server.rstrip("/"),
        ca_path=_path(cluster.certificate_authority, cluster.certificate_authority_data, folder, files),
        certificate_path=_path(user.client_certificate, user.client_certificate_data, folder, files),
        key_path=_path(user.client_key, user.client_key_data, folder, files),
        authorization=authorization,
    )


def _path(file: str, data: bytes, folder: Path, files: ExitStack) -> str | None:
    """Of a file with `data`, which wins over `file` as it does for kubectl."""
    if not data:
        return str(folder / file) if file else None
    # OpenSSL reads keys from files only. One in memory leaves no key on disk, however the process ends.
    descriptor = os.memfd_create("kubeconfig")
    files.callback(os.close, descriptor)
    os.write(descriptor, data)
    return f"/proc/self/fd/{descriptor}"


async def _from_package(kubeconfig: Path | None) -> ClientConfig:
    from kubernetes.aio import client, config  # noqa: PLC0415 - see the module's docstring

    # Its functions have no annotations.
    load_kube_config: Any = config.load_kube_config
    load_incluster_config: Any = config.load_incluster_config
    found: Any = client.Configuration()
    try:
        if kubeconfig is not None:
            await load_kube_config(config_file=str(kubeconfig), client_configuration=found)
        else:
            load_incluster_config(found)
    except (config.ConfigException, AttributeError, KeyError, TypeError) as error:
        # All but the first: it does not check what a kubeconfig holds.
        raise ValueError(str(error)) from error

    async def authorization() -> str | None:
        try:
            header: str | None = await found.get_api_key_with_prefix("BearerToken")
        except (config.ConfigException, OSError, ValueError) as error:
            raise ConfigError("the service account cannot be used", message=str(error)) from error
        return header

    return ClientConfig(
        server=found.host.rstrip("/"),
        ca_path=found.ssl_ca_cert,
        certificate_path=found.cert_file,
        key_path=found.key_file,
        authorization=authorization,
        verifies_server=found.verify_ssl,
        tls_server_name=found.tls_server_name,
        proxy_url=found.proxy,
    )
