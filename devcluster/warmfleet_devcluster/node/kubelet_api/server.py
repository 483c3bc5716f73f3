"""The kubelet's API, for `kubectl logs`, `exec` and `port-forward`: TLS, and only the API server may call."""

import ssl

from aiohttp import web
from aiohttp.typedefs import Handler

from warmfleet_devcluster.node.kubelet_api.container_logs import serve_logs
from warmfleet_devcluster.node.kubelet_api.exec_stream import serve_exec
from warmfleet_devcluster.node.kubelet_api.port_forward import serve_port_forward
from warmfleet_devcluster.node.process_node import ProcessNode
from warmfleet_devcluster.node.settings import NodeSettings


class KubeletServer:
    """Serves one node on its own address."""

    def __init__(self, node: ProcessNode, settings: NodeSettings) -> None:
        self._settings = settings
        app = web.Application(middlewares=[self._admit])
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", serve_logs(node))
        for path in ("/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"):
            app.router.add_get(path, serve_exec(node))
        for path in ("/portForward/{namespace}/{pod}", "/portForward/{namespace}/{pod}/{uid}"):
            app.router.add_get(path, serve_port_forward(node))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Listens. Raises OSError while the node's address does not exist."""
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, self._settings.address, self._settings.kubelet_port, ssl_context=self._tls()
        )
        await site.start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        names = {
            value
            for part in (certificate or {}).get("subject", ())
            for key, value in part
            if key == "commonName"
        }
        if self._settings.client_name not in names:
            raise web.HTTPForbidden(text="not the API server")
        return await handler(request)

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._settings.client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._settings.serving_certificate, self._settings.serving_key)
        return context


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok")
