"""`python -m warmfleet_devcluster.node`: runs one process node until SIGTERM; `--help` lists what it needs.

Needs root, and runs in the network namespace of the cluster.
"""

import argparse
import asyncio
import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

from warmfleet_devcluster.node.errors import NodeError
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.kubelet_api.server import KubeletServer
from warmfleet_devcluster.node.process_node import ProcessNode
from warmfleet_devcluster.node.settings import NodeSettings
from warmfleet_runtime.kubernetes.errors import ApiServerError

_CLONE_NEWNS: Final = 0x00020000
_MS_REC_PRIVATE: Final = 16384 | (1 << 18)


def main(arguments: list[str] | None = None) -> int:
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
    try:
        images = ImageList(settings.images)
        _own_mounts()
        shutil.rmtree(settings.state / "pods", ignore_errors=True)
        (settings.state / "pods").mkdir(parents=True)
        asyncio.run(_run(settings, images))
    except (NodeError, ApiServerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - output of a command
        return 1
    return 0


def parse_settings(arguments: list[str]) -> NodeSettings:
    """Settings from a command line; exits with a usage message for one that makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m warmfleet_devcluster.node",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # what is not given has the default of the settings
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of system:node:NAME")
    parser.add_argument("--address", required=True, help="of the node, in the cluster's network")
    parser.add_argument("--pod-cidr", required=True)
    parser.add_argument("--images", type=Path, required=True, help="list of the images that pods may use")
    parser.add_argument("--state", type=Path, required=True, help="folder for pods' files and logs")
    parser.add_argument(
        "--client-ca", type=Path, required=True, help="signer of the API server's certificate"
    )
    parser.add_argument("--serving-certificate", type=Path, required=True)
    parser.add_argument("--serving-key", type=Path, required=True)
    parser.add_argument("--client-name", help="the only caller of the kubelet API")
    parser.add_argument("--pretend", action="append", type=_pair, metavar="RESOURCE=QUANTITY")
    parser.add_argument("--dns")
    parser.add_argument("--cluster-domain")
    parser.add_argument("--kubelet-port", type=int)
    parser.add_argument("--time-ratio", type=float, help="scales the waits between restarts")
    parser.add_argument("--volume-refresh-seconds", type=float)
    parser.add_argument("--lease-seconds", type=float)
    parser.add_argument("--max-pods", type=int)
    given = vars(parser.parse_args(arguments))
    given["state"] = given["state"].resolve()
    given["pretend"] = dict(given.get("pretend", ()))
    return NodeSettings(**given)


def _pair(text: str) -> tuple[str, str]:
    name, equals, amount = text.partition("=")
    if not (name and equals and amount):
        raise argparse.ArgumentTypeError(f"{text!r} is not RESOURCE=QUANTITY")
    return name, amount


async def _run(settings: NodeSettings, images: ImageList) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    node = ProcessNode(settings, images)
    server = KubeletServer(node, settings)
    await node.prepare()
    await server.start()
    running = asyncio.create_task(node.run())
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        stopping.cancel()
        running.cancel()
        await asyncio.gather(stopping, running, return_exceptions=True)
        await server.stop()


def _own_mounts() -> None:
    """A mount namespace of this process: what pods mount goes away with it, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) != 0:
        number = ctypes.get_errno()
        raise NodeError(f"process nodes need root and namespaces: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
