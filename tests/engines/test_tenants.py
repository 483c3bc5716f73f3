"""Two tenants, one fleet, each engine: none hits what another has computed, unless the cache is shared."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from warmfleet_contracts.keys import NewKey
from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.tested_engines import EngineUnderTest
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.whole_fleet import WholeFleet, run_warmfleet, wait_for, whole_fleet

PROMPT_BLOCKS = 6


@dataclass
class Guarded:
    engine: EngineUnderTest
    fleet: WholeFleet
    keys: PlantedKeys
    one: NewKey
    one_too: NewKey
    two: NewKey
    left: NewKey
    right: NewKey
    prompts: int = 0

    @property
    def cacheable_tokens(self) -> int:
        """Of a prompt. The block that holds the last token is computed anew: its logits are wanted."""
        return (PROMPT_BLOCKS - 1) * self.engine.block_tokens

    def new_prompt(self) -> list[int]:
        """Token ids that no request has sent before."""
        self.prompts += 1
        tokens = PROMPT_BLOCKS * self.engine.block_tokens
        return [(7 * position + self.prompts) % 251 for position in range(tokens)]

    def cached_tokens(self, key: NewKey, prompt: list[int], **fields: Any) -> int:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
        answer = httpx.post(
            f"{self.fleet.url}/v1/completions", json=body, headers=bearer(key), timeout=60, verify=NO_TLS
        )
        usage = answer.raise_for_status().json()["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        self.fleet.wait_until_quiet()
        cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        return cached


def guarded_fleet(engine: EngineUnderTest, home: Path, sharing: str) -> Iterator[Guarded]:
    keys = PlantedKeys()
    named = {
        "one": keys.add("one"),
        "one_too": keys.add("one"),
        "two": keys.add("two"),
        "left": keys.add("left", sharing_group="both"),
        "right": keys.add("right", sharing_group="both"),
    }
    # One worker: what is not hit there is not hit because it may not be.
    model = tiny_served_model(home / "model", **engine.model_fields)
    with whole_fleet(home, model, replicas=1, sharing=sharing, keys=keys, **engine.fleet) as fleet:
        yield Guarded(engine, fleet, keys, **named)


@pytest.fixture(scope="module")
def by_tenant(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from guarded_fleet(engine, tmp_path_factory.mktemp("tenant"), "Tenant")


def test_the_same_prompt_of_another_tenant_is_never_a_hit(by_tenant: Guarded) -> None:
    prompt = by_tenant.new_prompt()

    assert by_tenant.cached_tokens(by_tenant.one, prompt) == 0
    assert by_tenant.cached_tokens(by_tenant.two, prompt) == 0
    assert by_tenant.cached_tokens(by_tenant.one, prompt) == by_tenant.cacheable_tokens


def test_two_keys_of_one_tenant_share_its_cache(by_tenant: Guarded) -> None:
    prompt = by_tenant.new_prompt()

    assert by_tenant.cached_tokens(by_tenant.one, prompt) == 0
    assert by_tenant.cached_tokens(by_tenant.one_too, prompt) == by_tenant.cacheable_tokens


def test_tenants_of_one_group_share_their_cache(by_tenant: Guarded) -> None:
    prompt = by_tenant.new_prompt()

    assert by_tenant.cached_tokens(by_tenant.left, prompt) == 0
    assert by_tenant.cached_tokens(by_tenant.right, prompt) == by_tenant.cacheable_tokens
    assert by_tenant.cached_tokens(by_tenant.one, prompt) == 0


def test_a_cache_salt_narrows_and_opens_nothing(by_tenant: Guarded) -> None:
    prompt = by_tenant.new_prompt()

    assert by_tenant.cached_tokens(by_tenant.one, prompt, cache_salt="mine") == 0
    assert by_tenant.cached_tokens(by_tenant.one, prompt) == 0
    assert by_tenant.cached_tokens(by_tenant.two, prompt, cache_salt="mine") == 0
    assert by_tenant.cached_tokens(by_tenant.one, prompt, cache_salt="mine") == by_tenant.cacheable_tokens


def test_an_answer_reveals_nothing_of_the_fleet_to_a_tenant(by_tenant: Guarded) -> None:
    """No worker's header leaves the router; the decision's id opens nothing without admin scope."""
    fleet, prompt = by_tenant.fleet, by_tenant.new_prompt()
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
    answer = httpx.post(
        f"{fleet.url}/v1/completions", json=body, headers=bearer(by_tenant.one), timeout=60, verify=NO_TLS
    )

    ours = {name for name in answer.headers if name.startswith("x-warmfleet")}
    assert ours == {"x-warmfleet-decision"}
    decision = f"/debug/decisions/{answer.headers['x-warmfleet-decision']}"
    assert httpx.get(fleet.url + decision, headers=bearer(by_tenant.one), verify=NO_TLS).status_code == 403
    assert fleet.get(decision)["predicted_cached_tokens"] == 0


def test_tenants_that_use_one_request_id_get_their_own_answers(by_tenant: Guarded) -> None:
    """An id that a client chooses may be another client's: nothing is found by it."""

    def answer(key: NewKey, prompt: list[int]) -> str:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0}
        headers = {**bearer(key), "x-request-id": "the-same"}
        response = httpx.post(
            f"{by_tenant.fleet.url}/v1/completions", json=body, headers=headers, timeout=60, verify=NO_TLS
        )
        text: str = response.raise_for_status().json()["choices"][0]["text"]
        return text

    asked = [(key, by_tenant.new_prompt()) for key in (by_tenant.one, by_tenant.two) * 4]
    alone = [answer(key, prompt) for key, prompt in asked]
    with ThreadPoolExecutor(max_workers=len(asked)) as threads:
        together = list(threads.map(lambda question: answer(*question), asked))

    assert together == alone
    assert len(set(alone)) > 1


def test_the_commands_send_the_key_of_the_environment(by_tenant: Guarded) -> None:
    fleet = by_tenant.fleet
    status = run_warmfleet(fleet.home, "status", "--name", fleet.name, api_key=fleet.admin_key)
    withheld = run_warmfleet(fleet.home, "status", "--name", fleet.name)
    assert "loads are not shown" in withheld
    assert "loads are not shown" not in status

    question = ("chat", "--once", "hello", "--max-tokens", "2", "--output", "json")
    decision = json.loads(run_warmfleet(fleet.home, *question, api_key=by_tenant.one.text))["decision"]
    run_warmfleet(fleet.home, "why", decision, exit_code=9)
    run_warmfleet(fleet.home, "why", decision, exit_code=9, api_key=by_tenant.one.text)
    assert "chose" in run_warmfleet(fleet.home, "why", decision, api_key=fleet.admin_key)


def test_a_key_is_made_and_revoked_while_the_fleet_runs(by_tenant: Guarded) -> None:
    fleet = by_tenant.fleet
    file = ("--keys-file", str(fleet.home / "keys.json"))
    made = run_warmfleet(fleet.home, "keys", "create", "--tenant", "late", *file)
    key_id, text = made.split()[3], made.split()[1]

    def status() -> int:
        return httpx.get(f"{fleet.url}/v1/models", headers=bearer(text), verify=NO_TLS).status_code

    wait_for(lambda: status() == 200, "the new key is known")
    run_warmfleet(fleet.home, "keys", "revoke", key_id, *file)
    wait_for(lambda: status() == 401, "the revoked key is refused")


def test_no_log_of_router_or_worker_holds_a_key(by_tenant: Guarded) -> None:
    by_tenant.cached_tokens(by_tenant.one, by_tenant.new_prompt())
    logs = [path.read_text() for path in (by_tenant.fleet.home / "run" / by_tenant.fleet.name).glob("*.log")]
    assert len(logs) >= 3
    assert any(f'"key_id": "{by_tenant.one.id}"' in log and '"tenant": "one"' in log for log in logs)
    for text in by_tenant.keys.texts:
        assert all(text.rpartition("-")[2] not in log for log in logs)


def test_a_shared_deployment_is_one_cache_for_all_keys(engine: EngineUnderTest, tmp_path: Path) -> None:
    for shared in guarded_fleet(engine, tmp_path, "Deployment"):
        prompt = shared.new_prompt()

        assert shared.cached_tokens(shared.one, prompt) == 0
        assert shared.cached_tokens(shared.two, prompt) == shared.cacheable_tokens
        assert shared.cached_tokens(shared.left, prompt) == shared.cacheable_tokens
        assert shared.cached_tokens(shared.two, prompt, cache_salt="mine") == 0
