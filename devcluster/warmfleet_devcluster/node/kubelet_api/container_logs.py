"""GET /containerLogs: a container's output from its log file; with `follow`, also what it writes later."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from aiohttp import web

from warmfleet_devcluster.node.container.log_file import LogOptions, LogReader, present
from warmfleet_devcluster.node.container.runner import ContainerRunner
from warmfleet_devcluster.node.process_node import ProcessNode

_POLL_SECONDS: Final = 0.1
_MAX_TAIL_LINES: Final = 1_000_000


def serve_logs(node: ProcessNode) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The request handler for one node."""

    async def handle(request: web.Request) -> web.StreamResponse:
        pod = node.find(request.match_info["namespace"], request.match_info["pod"])
        container = pod.container(request.match_info["container"]) if pod else None
        if container is None:
            raise web.HTTPNotFound(text="no such container on this node")
        try:
            options = log_options(dict(request.query))
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        path = container.log_path(previous=options.previous)
        if path is None:
            what = "previous terminated container" if options.previous else "container"
            raise web.HTTPBadRequest(text=f'{what} "{container.name}" has no log')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        left_bytes = options.limit_bytes
        async for text in _lines(path, container, options):
            if left_bytes is not None:
                text, left_bytes = text[:left_bytes], max(0, left_bytes - len(text))
            await response.write(text)
            if left_bytes == 0:
                break
        await response.write_eof()
        return response

    return handle


def log_options(query: dict[str, str]) -> LogOptions:
    """Options from a query; raises ValueError for one that is no number or time."""
    since = query.get("sinceTime", "")
    if "sinceSeconds" in query:
        earliest = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        since = earliest.strftime("%Y-%m-%dT%H:%M:%S")
    return LogOptions(
        follow=query.get("follow") == "true",
        previous=query.get("previous") == "true",
        timestamps=query.get("timestamps") == "true",
        tail_lines=min(int(query["tailLines"]), _MAX_TAIL_LINES) if "tailLines" in query else None,
        since=since,
        limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
    )


async def _lines(path: Path, container: ContainerRunner, options: LogOptions) -> AsyncIterator[bytes]:
    """Presented entries; with `follow`, until this run of the container is over."""
    # Log files are local, read in small pieces, and a container's file is never waited for.
    with LogReader(path) as log:
        kept = (present(entry, options) for entry in log.read())
        yield b"".join(kept if options.tail_lines is None else deque(kept, options.tail_lines))
        while options.follow:
            over = container.log_path() != path or container.process is None
            for entry in log.read():
                yield present(entry, options)
            if over:
                return
            await asyncio.sleep(_POLL_SECONDS)
