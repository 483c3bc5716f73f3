"""Lists of objects, read page by page."""

from collections.abc import AsyncGenerator, Mapping
from typing import Final, Protocol

import msgspec

from warmfleet_runtime.kubernetes.decoding import decoded
from warmfleet_runtime.kubernetes.media_types import JSON

PAGE_OBJECTS: Final = 500
"""As client-go has it: https://kubernetes.io/docs/reference/using-api/api-concepts/."""


class ListMetadata(msgspec.Struct, frozen=True, rename={"token": "continue"}):
    """Of a list. `token` asks for the next page; empty on the last one."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    token: str = ""


class ListPage(msgspec.Struct, frozen=True):
    """A page of a list, its items not yet decoded."""

    metadata: ListMetadata = ListMetadata()
    items: list[msgspec.Raw] | None = None


class ReadsLists(Protocol):
    """What paging needs of a client."""

    async def read(self, path: str, query: Mapping[str, str], *, accept: str = JSON) -> bytes:
        """The body of a 2xx response to GET; raises ApiServerError."""
        ...


async def list_pages(
    client: ReadsLists,
    path: str,
    query: Mapping[str, str],
    *,
    page_objects: int = PAGE_OBJECTS,
    accept: str = JSON,
) -> AsyncGenerator[ListPage, None]:
    """Every page of the list at `path`; all are of the same version.

    Raises:
        ApiServerError: a page cannot be had; with status 410 the list has to be begun again.
    """
    asked = {**query, "limit": str(page_objects)}
    while True:
        page = decoded(await client.read(path, asked, accept=accept), ListPage)
        yield page
        if not page.metadata.token:
            return
        asked["continue"] = page.metadata.token
