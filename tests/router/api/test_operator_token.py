"""The operator's token: opens what administrators read, and no model."""

import json

import pytest
import structlog

from warmfleet_router.settings import parse_settings
from warmfleet_testing.router.guarded_router import status_of
from warmfleet_testing.router.planted_keys import bearer
from warmfleet_testing.router.router_fixture import running_router

TOKEN = "0f" * 32
READ = ("/internal/fleet", "/internal/fleet/totals", "/internal/decisions", "/debug/config")
INSIDE = (*READ, "/internal/nothing", "/debug")
BODIES = {
    "/v1/completions": {"model": "stub", "prompt": "x"},
    "/v1/chat/completions": {"model": "stub", "messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"model": "stub", "prompt": "x"},
}


@pytest.mark.parametrize("with_keys", [False, True], ids=["anonymous", "keys"])
async def test_the_operator_reads_the_fleet_and_asks_no_model(stub, keys, tmp_path, with_keys):
    keys.add("a")
    settings = {"keys": keys.file} if with_keys else {"allow_anonymous": True}
    with structlog.testing.capture_logs() as lines:
        async with running_router([stub], tmp_path, operator_token=TOKEN.encode(), **settings) as router:
            for path in (*READ, "/metrics", "/readyz"):
                assert await status_of(router, "GET", path, bearer(TOKEN)) == 200, path
            for path, body in BODIES.items():
                assert await status_of(router, "POST", path, bearer(TOKEN), json=body) == 403, path
            assert await status_of(router, "GET", "/v1/models", bearer(TOKEN)) == 403
            async with router.http.get(router.url + "/debug/config", headers=bearer(TOKEN)) as response:
                config = await response.text()

    assert not stub.requests
    finished = [
        line for line in lines if line["event"] == "request finished" and line["path"] == "/internal/fleet"
    ]
    assert [line["tenant"] for line in finished] == ["operator"]
    assert TOKEN not in repr(lines) + config
    assert json.loads(config)["settings"]["operator_token"] == "set"


async def test_anonymous_clients_beside_an_operator_are_served_and_see_nothing_of_the_inside(stub, tmp_path):
    settings = {"operator_token": TOKEN.encode(), "allow_anonymous": True}
    async with running_router([stub], tmp_path, **settings) as router:
        for headers in ({}, bearer("sk-any"), bearer(TOKEN[:-1]), bearer(TOKEN + "0"), bearer("")):
            for path in INSIDE:
                assert await status_of(router, "GET", path, headers) == 401, path
            for path in ("/v1/models", "/metrics", "/livez"):
                assert await status_of(router, "GET", path, headers) == 200, path
            assert (
                await status_of(router, "POST", "/v1/completions", headers, json=BODIES["/v1/completions"])
                == 200
            )
        twice = [("authorization", f"Bearer {TOKEN}")] * 2
        assert await status_of(router, "GET", "/internal/fleet", twice) == 401


async def test_without_an_operator_nothing_is_closed_to_anonymous_clients(stub, tmp_path):
    async with running_router([stub], tmp_path) as router:
        assert await status_of(router, "GET", "/internal/fleet") == 200
        assert await status_of(router, "GET", "/internal/fleet", bearer("")) == 200


async def test_an_operators_token_beside_keys_takes_nothing_from_administrators(stub, keys, tmp_path):
    admin, inference = keys.add("ops", scopes=["admin"]), keys.add("a")
    async with running_router([stub], tmp_path, operator_token=TOKEN.encode(), keys=keys.file) as router:
        assert await status_of(router, "GET", "/internal/fleet", bearer(admin)) == 200
        assert await status_of(router, "GET", "/internal/fleet", bearer(inference)) == 403
        assert await status_of(router, "GET", "/internal/fleet") == 401
        assert await status_of(router, "GET", "/metrics") == 401


def test_an_operators_token_comes_from_the_environment_and_a_weak_one_is_refused(capsys):
    environment = {"WARMFLEET_OPERATOR_TOKEN": f"{TOKEN}\n"}
    assert parse_settings([], environment).operator_token == TOKEN.encode()
    assert TOKEN not in repr(parse_settings([], environment))
    assert parse_settings([], {}).operator_token == b""
    for weak in ("short-planted", "with a space in the middle", "\x00" * 32):
        with pytest.raises(SystemExit):
            parse_settings([], {"WARMFLEET_OPERATOR_TOKEN": weak})
        message = capsys.readouterr().err
        assert "WARMFLEET_OPERATOR_TOKEN" in message
        assert weak not in message
