"""Pods of one node, or of many: a list, then its changes, for as long as the process lives."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import structlog

from warmfleet_devcluster.api_client import ApiClient, ApiError

Json = dict[str, Any]

_RETRY_SECONDS: Final = 1.0
log = structlog.get_logger()


async def watch_pods(api: ApiClient, field_selector: str) -> AsyncIterator[tuple[str, Json]]:
    """Yields (`SYNC`, {uid: pod}) after a list and (`ADDED` | `MODIFIED` | `DELETED`, pod) for a change.

    Starts over with a list whenever the watch is lost; never ends and never raises ApiError.
    """
    selector = {"fieldSelector": field_selector} if field_selector else {}
    while True:
        try:
            listed = await api.get("/api/v1/pods", selector)
            yield "SYNC", {pod["metadata"]["uid"]: pod for pod in listed["items"]}
            version = listed["metadata"]["resourceVersion"]
            while True:
                # A watch that the server ends in peace goes on from the last version seen.
                async for event in api.watch("/api/v1/pods", {**selector, "resourceVersion": version}):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
        except ApiError as error:
            log.warning("watch lost", selector=field_selector, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
