"""The one module that imports the Kubernetes client, and only when it connects: 23 MB and half a second.

The client brings configuration (kubeconfig, service account with rotating token), TLS and authentication.
Bodies are read by our own, bounded decoders; its generated models stay unused.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from warmfleet_router.errors import ApiServerError

GET_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
MAX_LIST_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Objects end at 1.5 MiB, by etcd's limit for a request."""


def connect(kubeconfig: Path | None) -> AbstractAsyncContextManager["KubernetesApi"]:
    """The API server of `kubeconfig`; of the cluster that this process runs in if there is none.

    Raises:
        ApiServerError: the configuration is missing or cannot be used.
    """
    return _connected(kubeconfig)


@asynccontextmanager
async def _connected(kubeconfig: Path | None) -> AsyncGenerator["KubernetesApi", None]:
    from kubernetes.aio import client, config  # noqa: PLC0415 - see the module's docstring

    # The client's functions have no annotations.
    load_kube_config: Any = config.load_kube_config
    load_incluster_config: Any = config.load_incluster_config
    configuration = client.Configuration(connection_pool_maxsize=0)  # two watches per namespace, however many
    try:
        if kubeconfig is not None:
            await load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
        else:
            load_incluster_config(configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig is not None else "service account"
        raise ApiServerError(f"the cluster's {where} cannot be used", detail=str(error)) from error
    async with client.ApiClient(configuration) as api:
        yield KubernetesApi(api)


class KubernetesApi:
    """An `ApiServer`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """See `ApiServer`."""
        try:
            async with asyncio.timeout(GET_SECONDS), self._request(path, query) as response:
                content = await response.content.read(MAX_LIST_BYTES + 1)
                while len(content) <= MAX_LIST_BYTES and (
                    more := await response.content.read(MAX_LIST_BYTES)
                ):
                    content += more
        except TimeoutError as error:
            raise ApiServerError(f"no answer within {GET_SECONDS:g} s") from error
        if len(content) > MAX_LIST_BYTES:
            raise ApiServerError(f"answers more than {MAX_LIST_BYTES} bytes")
        return content

    async def lines(
        self, path: str, query: Mapping[str, str], silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """See `ApiServer`."""
        rest = b""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(GET_SECONDS):
                    response = await stack.enter_async_context(self._request(path, query))
                yield b""
                while True:
                    async with asyncio.timeout(silence_seconds):
                        data = await response.content.readany()
                    if not data:
                        return
                    *whole, rest = (rest + data).split(b"\n")
                    if len(rest) > MAX_LINE_BYTES:
                        raise ApiServerError(f"sends a line of more than {MAX_LINE_BYTES} bytes")
                    for line in whole:
                        if line:
                            yield line
            except TimeoutError as error:
                raise ApiServerError("has fallen silent") from error
            except (aiohttp.ClientError, OSError) as error:
                raise _unreachable(error) from error

    @asynccontextmanager
    async def _request(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A 200 whose body has not been read; closed at the end, read or not."""
        from kubernetes.aio import config  # noqa: PLC0415 - see the module's docstring

        try:
            _, url, headers, _, _ = await self._client.param_serialize(
                "GET",
                path,
                query_params=list(query.items()),
                header_params={"accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            answer = await self._client.call_api("GET", url, header_params=headers, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            try:
                if response.status != 200:
                    raise await _refusal(response)
                yield response
            finally:
                response.close()
        except config.ConfigException as error:
            raise ApiServerError("the service account cannot be used", detail=str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from error


def _unreachable(error: Exception) -> ApiServerError:
    return ApiServerError("cannot be reached", detail=str(error) or type(error).__name__)


async def _refusal(response: aiohttp.ClientResponse) -> ApiServerError:
    said = (await response.content.read(4096)).decode("utf-8", "replace")
    retry_after = response.headers.get("retry-after", "")
    return ApiServerError(
        f"answers {response.status}",
        detail=said,
        status=response.status,
        retry_after_seconds=float(retry_after) if retry_after.isdecimal() else None,
    )
