from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.recent_tokens import BUCKET_SECONDS, WINDOW_SECONDS, PromptTokens, RecentTokens

ANSWERS = st.lists(
    st.tuples(st.floats(0, 200), st.sampled_from(["a", "b"]), st.integers(0, 1000), st.integers(0, 1000)),
    max_size=30,
)


@given(ANSWERS, st.floats(0, 400))
def test_all_of_the_window_counts_and_nothing_older_than_a_bucket_more(answers, later):
    now = 0.0
    recent, told = RecentTokens(lambda: now), []
    for waited, uid, prompt, cached in answers:
        now += waited
        recent.add(uid, prompt=prompt, cached=cached)
        told.append((now, uid, prompt, cached))
    now += later

    for uid in ("a", "b"):

        def since(seconds, uid=uid):
            kept = [answer for answer in told if answer[1] == uid and now - answer[0] <= seconds]
            return sum(answer[2] for answer in kept), sum(answer[3] for answer in kept)

        found = recent.of(uid)
        least, most = since(WINDOW_SECONDS), since(WINDOW_SECONDS + BUCKET_SECONDS)
        assert least[0] <= found.prompt <= most[0]
        assert least[1] <= found.cached <= most[1]
    assert all(len(buckets) <= WINDOW_SECONDS // BUCKET_SECONDS + 1 for buckets in recent._buckets.values())


def test_a_worker_that_is_gone_is_forgotten():
    recent = RecentTokens(lambda: 0.0)
    recent.add("a", prompt=10, cached=5)
    recent.forget("a")
    recent.forget("never seen")

    assert recent.of("a") == PromptTokens()


def test_a_hundred_percent_means_all():
    assert PromptTokens(1000, 999).hit_percent == 99
    assert PromptTokens(3, 3).hit_percent == 100
    assert PromptTokens().hit_percent is None
