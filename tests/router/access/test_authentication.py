"""Keys at the router over real HTTP: nothing but probes is reached without one."""

import datetime as dt
import json
import re

import structlog
from prometheus_client import generate_latest

from warmfleet_router.access.authentication import needed_scopes
from warmfleet_router.metrics import MAX_TENANT_LABELS, RouterMetrics
from warmfleet_testing.router.guarded_router import guarded, json_of, routes_of, status_of
from warmfleet_testing.router.planted_keys import bearer

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
OPEN = {"/livez", "/readyz", "/health"}
HELLO = {"model": "stub", "prompt": "hello"}


async def test_every_route_and_method_is_closed_to_who_has_no_right_to_it(stub, keys, tmp_path):
    inference = keys.add("a", models=["stub"])
    other_tenant = keys.add("b", models=["another"])
    metrics = keys.add("ops", scopes=["metrics"])
    expired = keys.add("a", scopes=["inference", "metrics", "admin"], expires=dt.datetime.now(dt.UTC))
    wrong = keys.file.keys[0].id
    async with guarded(stub, tmp_path, keys) as router:
        paths = [
            route.path.replace("{id:path}", "stub").replace("{id}", "x")
            for route in routes_of(router.router.api.app)
        ]
        assert len(paths) >= 14
        for path in [*paths, "/", "/nothing", "/docs", "/internal", "/debug"]:
            needed = needed_scopes(path)
            for method in METHODS:
                outcomes = {}
                for caller, headers in {
                    "no key": {},
                    "wrong": bearer(f"wf-{wrong}-{'0' * 64}"),
                    "expired": bearer(expired),
                    "inference": bearer(inference),
                    "other tenant": bearer(other_tenant),
                    "metrics": bearer(metrics),
                }.items():
                    outcomes[caller] = await status_of(router, method, path, headers, json=HELLO)
                if path in OPEN:
                    assert set(outcomes.values()) == {200 if method in {"GET", "HEAD"} else 405}
                    continue
                assert outcomes["no key"] == outcomes["wrong"] == outcomes["expired"] == 401, (method, path)
                assert (outcomes["metrics"] == 403) == ("metrics" not in needed), (method, path)
                assert (outcomes["inference"] == 403) == ("inference" not in needed), (method, path)
                # The other tenant reaches no model of the first, and otherwise what the first one reaches.
                assert outcomes["other tenant"] in {403, outcomes["inference"]}, (method, path)
                if path in {"/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models/stub"}:
                    assert outcomes["other tenant"] in {400, 403, 405}, (method, path)
        assert len(stub.computed_tokens) == 1  # the one completion that was allowed


async def test_a_refusal_has_openais_shape_and_names_what_to_send(stub, keys, tmp_path):
    metrics = keys.add("ops", scopes=["metrics"])
    async with guarded(stub, tmp_path, keys) as router:
        async with router.http.get(router.url + "/v1/models") as response:
            error = (await response.json())["error"]
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert "Authorization: Bearer" in error["message"]

        status, refused = await json_of(router, "/v1/models", bearer("wrong"))
        assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
        assert refused["error"]["message"].startswith("Incorrect API key provided")

        status, refused = await json_of(router, "/v1/models", bearer(metrics))
        assert (status, refused["error"]["code"]) == (403, "missing_scope")
        assert "inference" in refused["error"]["message"]


async def test_a_key_sees_and_calls_only_its_models(stub, keys, tmp_path):
    mine, other, both = keys.add("a", models=["stub"]), keys.add("b", models=["team/other"]), keys.add("c")
    async with guarded(stub, tmp_path, keys) as router:
        for key, listed in ((mine, ["stub"]), (other, []), (both, ["stub"])):
            _, models = await json_of(router, "/v1/models", bearer(key))
            assert [model["id"] for model in models["data"]] == listed

        # What exists and what does not look alike to a key that may not call it.
        exists, refused = await json_of(router, "/v1/models/stub", bearer(other))
        missing, refused_too = await json_of(router, "/v1/models/stux", bearer(other))
        assert exists == missing == 403
        assert refused["error"]["message"].replace("stub", "stux") == refused_too["error"]["message"]
        assert refused["error"]["code"] == "model_not_allowed"
        # Its own model is allowed and not there; the answer lists nothing that it may not call.
        status, absent = await json_of(router, "/v1/models/team/other", bearer(other))
        assert (status, absent["error"]["code"]) == (404, "model_not_found")
        assert "stub" not in absent["error"]["message"]
        assert (await json_of(router, "/v1/models/stux", bearer(both)))[0] == 404

        for path, body in {
            "/v1/completions": HELLO,
            "/v1/chat/completions": {"model": "stub", "messages": [{"role": "user", "content": "x"}]},
            "/tokenize": {"model": "stub", "prompt": "x"},
            "/detokenize": {"model": "stub", "tokens": [1]},
        }.items():
            assert await status_of(router, "POST", path, bearer(other), json=body) == 403
        # No model named: any that the key may call, which is none.
        assert await status_of(router, "POST", "/tokenize", bearer(other), json={"prompt": "x"}) == 503
        assert len(stub.requests) == 0


async def test_the_tenants_of_equal_prompts_get_different_salts(stub, keys, tmp_path):
    one, two = keys.add("one"), keys.add("two")
    again = keys.add("one")
    left, right = keys.add("left", sharing_group="one"), keys.add("right", sharing_group="one")
    asked = [one, two, again, left, right]
    async with guarded(stub, tmp_path, keys) as router:
        for key in asked:
            assert (await router.ask("hello", headers=bearer(key)))[0] == 200
        for salt in ("a", "b"):
            await router.ask("hello", headers=bearer(one), cache_salt=salt)
        # A client's own salt header changes nothing.
        await router.ask(
            "hello", headers={**bearer(two), "x-warmfleet-salt": stub.requests[0]["x-warmfleet-salt"]}
        )
    salts = [request["x-warmfleet-salt"] for request in stub.requests]
    first, second, third, fourth, fifth, narrowed, narrowed_too, forged = salts
    assert first == third  # two keys of one tenant
    assert fourth == fifth  # a group; it is not the tenant of the same name
    assert forged == second
    assert len({first, second, fourth, narrowed, narrowed_too}) == 5
    assert all(b"cache_salt" not in body for body in stub.bodies)


async def test_a_shared_deployment_has_one_salt_for_all_and_a_request_may_still_narrow_it(
    stub, keys, tmp_path
):
    one, two = keys.add("one"), keys.add("two", sharing_group="g")
    async with guarded(stub, tmp_path, keys, shared_cache="smol") as router:
        for key in (one, two):
            await router.ask("hello", headers=bearer(key))
        await router.ask("hello", headers=bearer(one), cache_salt="mine")
    shared, shared_too, narrowed = (request["x-warmfleet-salt"] for request in stub.requests)
    assert shared == shared_too != narrowed


async def test_no_key_reaches_a_worker(stub, keys, tmp_path):
    key = keys.add("a")
    async with guarded(stub, tmp_path, keys) as router:
        await router.ask("hello", headers={**bearer(key), "x-api-key": key.text, "api-key": key.text})
    assert key.text not in json.dumps(stub.requests)


async def test_metrics_are_open_only_by_setting(stub, keys, tmp_path):
    keys.add("a")
    async with guarded(stub, tmp_path, keys, open_metrics=True) as router:
        assert await status_of(router, "GET", "/metrics") == 200
        assert await status_of(router, "GET", "/metrics%0a") == 400
        assert await status_of(router, "GET", "/debug/config") == 401


async def test_every_log_line_names_tenant_and_key_id_and_none_a_secret(stub, keys, tmp_path):
    key, admin = keys.add("acme"), keys.add("ops", scopes=["admin"])
    with structlog.testing.capture_logs() as lines:
        async with guarded(stub, tmp_path, keys, router_id="r") as router:
            await router.ask("hello", headers=bearer(key))
            for headers in (bearer(key), bearer(key.text + "x"), {"authorization": key.text}):
                await status_of(router, "GET", "/debug/config", headers)
            _, config = await json_of(router, "/debug/config", bearer(admin))
            async with router.http.get(router.url + "/metrics", headers=bearer(admin)) as response:
                metrics = await response.text()
            _, fleet = await json_of(router, "/internal/fleet", bearer(admin))

    finished = [line for line in lines if line["event"] == "request finished"]
    completion = next(line for line in finished if line["path"] == "/v1/completions")
    assert (completion["tenant"], completion["key_id"]) == ("acme", key.id)
    refused = [line for line in finished if line["status"] == 401]
    assert len(refused) == 2
    assert all("tenant" not in line for line in refused)
    assert 'tenant_requests_total{outcome="completed",tenant="acme"} 1.0' in metrics
    shown = repr(lines) + json.dumps(config) + metrics + json.dumps(fleet)
    for secret in (
        *keys.texts,
        key.text.rpartition("-")[2],
        "worker-token-planted",
        "planted-salt-key-planted",
    ):
        assert secret not in shown
    assert (config["settings"]["salt_key"], config["settings"]["endpoints"][0]["token"]) == ("set", "set")
    assert all(entry.sha256 not in shown for entry in keys.file.keys)


async def test_metric_labels_of_tenants_are_bounded(keys):
    metrics = RouterMetrics()
    for number in range(10_000):
        metrics.on_tenant_end(f"tenant-{number}", "completed")

    rendered = generate_latest(metrics.registry).decode()
    series = re.findall(r'tenant_requests_total\{outcome="completed",tenant="([^"]+)"\} (\d+)', rendered)
    assert len(series) == MAX_TENANT_LABELS + 1
    assert dict(series)["other"] == str(10_000 - MAX_TENANT_LABELS)
