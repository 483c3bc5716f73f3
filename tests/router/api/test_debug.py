"""`/internal/decisions`: how many may be asked for."""

from pathlib import Path

import pytest

from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import running_stubs


@pytest.mark.parametrize(
    "limit", ["0", "4097", "-1", "x", "", "1" * 5000, "000000001" + "9" * 5000, "0000000010000000"]
)
async def test_a_limit_that_is_no_number_in_range_is_refused(limit: str, tmp_path: Path) -> None:
    async with running_router([], tmp_path) as router:
        status, answer = await router.get(f"/internal/decisions?limit={limit}")

    assert status == 400
    assert answer["error"]["param"] == "limit"


async def test_as_many_decisions_are_returned_as_were_asked_for(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            for _ in range(3):
                await router.ask("hello")
            _, two = await router.get("/internal/decisions?limit=2")
            _, most = await router.get("/internal/decisions?limit=4096")

    assert (len(two["decisions"]), len(most["decisions"])) == (2, 3)
