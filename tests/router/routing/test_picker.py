"""The picker over real parts (index, pending blocks, open dispatches), without sockets."""

import time
from contextlib import AsyncExitStack

import pytest

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_testing.router.picker_fleet import BLOCK, OTHER_IDENTITY, PickerFleet, chain, prompts


def test_a_prompt_goes_where_its_prefix_is() -> None:
    tokens = list(range(330))
    fleet = PickerFleet("a", "b", "c")
    fleet.store("b", chain(tokens)[:10])

    choice = fleet.pick(prompts(tokens))

    assert choice.candidate.uid == "b"
    assert choice.prediction.cached_tokens == 160
    assert choice.charge.uncached_tokens == 170
    assert choice.candidate.precise


def test_a_cached_prefix_does_not_outweigh_a_long_queue() -> None:
    tokens = list(range(330))
    fleet = PickerFleet("a", "b")
    fleet.store("b", chain(tokens)[:10])

    fleet.load["b"] = fleet.report(0.001, queued_uncached_tokens=100)
    assert fleet.pick(prompts(tokens)).candidate.uid == "b"
    fleet.load["b"] = fleet.report(0.001, queued_uncached_tokens=300)

    assert fleet.pick(prompts(tokens)).candidate.uid == "a"


@pytest.mark.parametrize("tokens", [32, 33, 47, 48, 49])
def test_the_last_token_is_never_predicted_as_cached(tokens: int) -> None:
    prompt = list(range(tokens))
    fleet = PickerFleet("a")
    fleet.store("a", chain(prompt))

    assert fleet.pick(prompts(prompt)).prediction.cached_tokens == (tokens - 1) // BLOCK * BLOCK


def test_a_request_that_may_not_read_the_cache_is_predicted_to_find_nothing_there() -> None:
    tokens = list(range(330))
    fleet = PickerFleet("a", "b")
    fleet.store("b", chain(tokens)[:10])
    fleet.load["b"] = fleet.report(0.001, queued_uncached_tokens=50)

    choice = fleet.pick(prompts(tokens, may_read_cache=False))

    # then the queue decides, and the blocks that it will leave behind are pending
    assert choice.candidate.uid == "a"
    assert choice.candidate.precise
    assert (choice.prediction.cached_tokens, choice.charge.uncached_tokens) == (0, 330)
    assert choice.prediction.first.last_block == chain(tokens)[-1]
    assert len(choice.charge.new_hashes) == 20


def test_choices_that_may_not_read_the_cache_are_priced_as_prompts_of_their_own() -> None:
    tokens = list(range(330))
    fleet = PickerFleet("a")

    shared = fleet.pick(prompts(tokens, choices=4))
    alone = fleet.pick(prompts(tokens, choices=4, may_read_cache=False))
    unknown = fleet.pick(prompts(tokens, choices=4, may_read_cache=False, digest="other"))

    assert (shared.charge.uncached_tokens, shared.charge.blocks) == (330, 21)
    assert (alone.charge.uncached_tokens, alone.charge.blocks) == (4 * 330, 4 * 21)
    assert unknown.charge.uncached_tokens == 4 * 330
    assert alone.candidate.cost.prefill_ms == pytest.approx(4 * shared.candidate.cost.prefill_ms)
    assert alone.prediction.first.prompt_tokens == 330, "what the worker's headers describe"


async def test_sixteen_siblings_of_a_new_prefix_follow_their_leader() -> None:
    # given: a cold fleet and a prefix that costs 3.2 s to compute
    prefix = list(range(3200))
    fleet = PickerFleet("a", "b", "c")
    choices: list[PickedWorker] = []

    # when: sixteen arrive before the leader has computed anything, each with two tokens of its own
    async with AsyncExitStack() as stack:
        for sibling in range(16):
            choice = fleet.pick(prompts([*prefix, sibling, sibling]))
            await stack.enter_async_context(fleet.leases.lease(choice.charge))
            choices.append(choice)

    # then: waiting for the leader costs no more than computing the prefix once more elsewhere
    assert len({choice.candidate.uid for choice in choices}) == 1
    assert [choice.prediction.cached_tokens for choice in choices] == [0] + [3200] * 15
    assert choices[-1].prediction.pending_tokens == 3200
    assert choices[-1].candidate.load.queued_uncached_tokens == 3202 + 14 * 2


async def test_a_sibling_leaves_its_leader_when_the_queue_there_costs_more_than_the_prefix() -> None:
    prefix = list(range(160))
    fleet = PickerFleet("a", "b")
    leader = fleet.pick(prompts([*prefix, *range(5000, 5400)]))
    async with fleet.leases.lease(leader.charge):
        follower = fleet.pick(prompts([*prefix, *range(9000, 9016)]))

    # 560 queued + 16 there, 176 elsewhere
    assert follower.candidate.uid != leader.candidate.uid


async def test_a_dispatch_that_the_report_includes_is_not_counted_twice() -> None:
    tokens = list(range(100))
    fleet = PickerFleet("a")
    async with fleet.leases.lease(fleet.pick(prompts(tokens)).charge) as lease:
        before = fleet.pick(prompts(tokens)).candidate.load.queued_uncached_tokens
        fleet.load["a"] = LoadReport(
            queued_uncached_tokens=100, admitted_dispatches={"router": lease.dispatch}
        )
        after = fleet.pick(prompts(tokens)).candidate.load.queued_uncached_tokens

    assert before == after == 100


def test_unready_and_excluded_workers_are_no_candidates() -> None:
    fleet = PickerFleet("a", "b", "c")
    fleet.unready = {"a"}

    assert fleet.pick(prompts([1] * 40), excluded=["b"]).candidate.uid == "c"
    fleet.unready = {"a", "c"}
    assert fleet.picker.pick(fleet.workers, prompts([1] * 40), excluded=["b"]) is None


def test_two_revisions_are_each_matched_under_their_own_identity() -> None:
    tokens = list(range(330))
    fleet = PickerFleet("old", "new")
    fleet.identity["new"] = OTHER_IDENTITY
    fleet.store("new", chain(tokens, OTHER_IDENTITY)[:10])
    fleet.store("old", chain(tokens, OTHER_IDENTITY)[:20])  # another model's blocks mean nothing here

    choice = fleet.pick(prompts(tokens))

    assert choice.candidate.uid == "new"
    assert choice.prediction.cached_tokens == 160
    assert choice.ranking.candidates[1].cached_tokens == 0


def test_two_routers_send_siblings_of_a_new_prefix_to_the_same_worker() -> None:
    first, second = PickerFleet("a", "b", "c"), PickerFleet("a", "b", "c")
    for group in range(30):
        prefix = [group] * 64
        mine = first.pick(prompts([*prefix, *[1000] * 16])).candidate.uid
        theirs = second.pick(prompts([*prefix, *[2000] * 16])).candidate.uid
        assert mine == theirs


def test_without_a_tokenizer_the_choice_is_by_load_and_marked_as_imprecise() -> None:
    fleet = PickerFleet("a", "b")
    fleet.load["a"] = fleet.report(0.001, queued_uncached_tokens=500)

    choice = fleet.pick(prompts([1] * 40, digest="unknown"))

    assert choice.candidate.uid == "b"
    assert not choice.candidate.precise
    assert choice.prediction.cached_tokens == 0


def test_prompts_of_one_request_share_what_the_first_one_computes() -> None:
    prefix = list(range(64))
    fleet = PickerFleet("a")

    choice = fleet.pick(prompts([*prefix, 1, 2], [*prefix, 3, 4]))

    assert choice.prediction.first.cached_tokens == 0
    assert choice.prediction.cached_tokens == 64
    assert choice.charge.sequences == 2


def test_the_choices_of_a_prompt_take_a_seat_each_and_its_prefill_once() -> None:
    fleet = PickerFleet("a")

    one, four = (fleet.pick(prompts(list(range(64)), choices=choices)).charge for choices in (1, 4))

    assert (one.sequences, four.sequences) == (1, 4)
    assert (four.uncached_tokens, four.blocks) == (one.uncached_tokens, one.blocks)


def test_a_decision_about_a_long_prompt_takes_about_a_millisecond() -> None:
    tokens = list(range(2000))
    fleet = PickerFleet("a", "b", "c")
    fleet.store("b", chain(tokens)[:100])

    started = time.thread_time()  # computing alone: others have the cores meanwhile
    for _ in range(20):
        fleet.pick(prompts(tokens))
    seconds = (time.thread_time() - started) / 20

    assert seconds < 0.020  # generous: the machine may be slow
