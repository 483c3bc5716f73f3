"""A router process as its pod would run it: with its service account mounted, and the rest by environment."""

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from warmfleet_testing.router.router_process import RouterProcess, started_router

_ACCOUNT: Final = "/run/secrets/kubernetes.io/serviceaccount"  # where /var/run leads
_IN_POD: Final = f'mount -t tmpfs none /run && mkdir -p {_ACCOUNT} && cp "$0"/* {_ACCOUNT} && exec "$@"'


@contextmanager
def router_in_pod(
    kubeconfig: Path, account_token: str, home: Path, *flags: str, environment: dict[str, str]
) -> Iterator[RouterProcess]:
    """A router on a free port, ready; killed at the end. It sees what a pod of that account has mounted."""
    (cluster,) = yaml.safe_load(kubeconfig.read_text())["clusters"]
    account = home / "account"
    account.mkdir(parents=True)
    (account / "token").write_text(account_token)
    (account / "ca.crt").write_bytes(base64.b64decode(cluster["cluster"]["certificate-authority-data"]))
    host, _, port = cluster["cluster"]["server"].removeprefix("https://").rpartition(":")
    variables = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "WARMFLEET_HOME": str(home),
        **environment,
    }
    command = [sys.executable, "-m", "warmfleet_router", "--port", "0", "--discovery", "kubernetes", *flags]
    in_pod = ["unshare", "--mount", "sh", "-c", _IN_POD, str(account), *command]
    with started_router(in_pod, variables) as router:
        yield router
