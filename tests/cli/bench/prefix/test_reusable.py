from hypothesis import given
from hypothesis import strategies as st

from warmfleet_cli.bench.prefix.reusable import reusable_tokens
from warmfleet_cli.bench.workload import PrefixWorkload, plan_run


def brute_force(prompts, block):
    """Longest common full-block prefix with any earlier prompt, and never the last token."""
    found = []
    for number, prompt in enumerate(prompts):
        best = 0
        for earlier in prompts[:number]:
            common = 0
            while common < min(len(prompt), len(earlier)) and prompt[common] == earlier[common]:
                common += 1
            best = max(best, common // block * block)
        while best >= len(prompt) and best > 0:
            best -= block
        found.append(best)
    return found


prompts_of_few_tokens = st.lists(st.lists(st.integers(0, 1), max_size=14), max_size=8)


@given(prompts_of_few_tokens, st.integers(1, 4))
def test_the_infinite_cache_finds_what_comparing_all_prompts_finds(prompts, block):
    assert reusable_tokens(prompts, block) == brute_force(prompts, block)


def test_in_the_standard_workload_all_but_the_first_of_each_group_reuse_the_whole_prefix():
    plan = plan_run(
        PrefixWorkload(),
        rate_per_second=1.0,
        vocabulary=range(100, 40_000),
        schedule_seed=1,
        prompt_seed=2,
    )

    reusable = reusable_tokens([request.token_ids for request in plan], 16)

    assert sorted(reusable) == [0] * 16 + [256] * 64


def test_a_repeated_prompt_of_whole_blocks_still_computes_its_last_token():
    assert reusable_tokens([[5] * 32, [5] * 32], 16) == [0, 16]
