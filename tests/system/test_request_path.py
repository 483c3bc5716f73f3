"""One HTTP request through the router: which room calls which, and how admission is entered.

The calls are recorded, not read off the imports: three requests (a stream, one that is refused beside it, and
a plain answer whose first worker breaks the connection) pass a real router in front of stub workers.
docs/architecture.md shows the list; `python tests/system/test_request_path.py` writes it anew.
"""

import asyncio
import re
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_testing.router.request_trace import RequestTrace, TracedApp, recording
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
BLOCK: Final = re.compile(r"(?<=<!-- request-trace:begin -->\n).*?(?=<!-- request-trace:end -->)", re.DOTALL)
TRACED: Final = {"x-trace": "1"}
PROMPT: Final = "a" * 640
ENTRANCES: Final = {"WakingQueue.holds", "Admission.reserve", "Admission.submit", "Admission.retry"}
"""Twice before the prompt is encoded, and afterwards. While its model sleeps a request takes a turn, too."""
OWN_METHODS: Final = {
    *("InFlightLimits.enter", "InFlightTicket.__enter__", "InFlightTicket.__exit__"),
    *(
        "InFlightTicket.receive",
        "InFlightTicket.encoding_slot",
        "InFlightTicket.answer",
        "BufferedAnswer.receive",
        "InFlightTicket.add_tokens",
        "Dispatch.is_alone",
        "Dispatch.release",
    ),
}
"""The ticket is taken before a body is read. Ticket, answer and dispatch belong to the request, which ends
them."""
ONE_IN_FLIGHT: Final = AdmissionSettings(max_in_flight=Amount(requests=1, buffered_bytes=2**20, tokens=2**20))


def layers() -> list[set[str]]:
    """The router's rooms from top to bottom, as import-linter checks them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [router] = [contract for contract in contracts if contract["name"] == "Rooms of the router"]
    return [{room.strip() for room in layer.split("|")} for layer in router["layers"]]


def slow_stub(number: int) -> StubWorker:
    """A worker on which a cached prompt is worth much: the second request goes where the first went."""
    return StubWorker(uid=f"w{number}", prefill_tokens_per_second=10_000)


async def traced_requests(home: Path) -> RequestTrace:
    """What was called while three requests passed."""
    with ExitStack() as stack:
        stubs = [stack.enter_context(running_stub(slow_stub(number))) for number in range(2)]
        async with running_router(stubs, home, wrap=TracedApp, admission=ONE_IN_FLIGHT) as router:
            with recording() as trace:
                stream = asyncio.create_task(router.ask(PROMPT, stream=True, headers=TRACED))
                await router.until(lambda: any(stub.requests for stub in stubs))
                refused, _, _ = await router.ask(PROMPT, headers=TRACED)
                streamed, _, _ = await stream
                await router.until_settled(stubs)
                warm = next(stub for stub in stubs if stub.requests)
                warm.faults.close_before_headers = True
                retried, _, _ = await router.ask(PROMPT, headers=TRACED)
    assert (streamed, refused, retried) == (200, 429, 200)
    assert all(stub.requests for stub in stubs)
    return trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> RequestTrace:
    return asyncio.run(traced_requests(tmp_path_factory.mktemp("home")))


def rows(trace: RequestTrace) -> str:
    """The edges as a table, in the order of the layers."""
    order = {room: depth for depth, layer in enumerate(layers()) for room in layer}
    edges = sorted(trace.edges, key=lambda edge: (order[edge[0]], order[edge[1]], edge))
    lines = ["| from | to |", "|---|---|"]
    for caller in dict.fromkeys(caller for caller, _ in edges):
        callees = ", ".join(f"`{callee}`" for start, callee in edges if start == caller)
        lines.append(f"| `{caller}` | {callees} |")
    return "\n".join(lines) + "\n"


def test_a_request_passes_the_rooms_without_a_cycle(trace: RequestTrace) -> None:
    graph: dict[str, set[str]] = {}
    for caller, callee in trace.edges:
        graph.setdefault(caller, set()).add(callee)

    assert list(TopologicalSorter(graph).static_order())


def test_every_call_between_rooms_goes_down_the_layers_that_imports_obey(trace: RequestTrace) -> None:
    order = {room: depth for depth, layer in enumerate(layers()) for room in layer}

    assert len(trace.edges) > 5
    assert not {edge for edge in trace.edges if order[edge[0]] >= order[edge[1]]}


def test_a_request_passes_every_room_that_serves_requests(trace: RequestTrace) -> None:
    passed = {room for edge in trace.edges for room in edge}

    assert {"api", "proxy", "admission", "routing", "workers"} <= passed


def test_admission_is_entered_by_four_verbs_only(trace: RequestTrace) -> None:
    assert trace.entered("admission") - OWN_METHODS == ENTRANCES


def test_the_document_shows_the_rooms_that_a_request_passes(trace: RequestTrace) -> None:
    found = BLOCK.search(PAGE.read_text())

    assert found is not None
    assert found[0] == rows(trace)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        table = rows(asyncio.run(traced_requests(Path(folder))))
    PAGE.write_text(BLOCK.sub(lambda _: table, PAGE.read_text()))
    sys.stdout.write(table)
