"""Who is much slower than its peers."""

from warmfleet_router.routing.slow_workers import Outliers

PEERS = ("slow", "b", "c")


def observe(
    outliers: Outliers, uid: str, seconds: float, *, times: int = 1, expected: float = 0.1, at: float = 0
) -> str:
    verdict = ""
    for _ in range(times):
        verdict = outliers.observe(uid, seconds=seconds, expected_seconds=expected, peers=PEERS, now=at)
    return verdict


def test_a_worker_ten_times_slower_than_it_says_is_an_outlier_after_eight_answers() -> None:
    outliers = Outliers()
    for peer in PEERS[1:]:
        observe(outliers, peer, 0.1, times=8)

    assert not observe(outliers, "slow", 1.0, times=7)
    assert observe(outliers, "slow", 1.0) == "10 times slower than its peers"


def test_one_slow_answer_is_no_outlier() -> None:
    outliers = Outliers()
    observe(outliers, "b", 0.1, times=8)
    observe(outliers, "slow", 0.1, times=7)

    assert not observe(outliers, "slow", 60.0)


def test_when_all_are_slow_nobody_is() -> None:
    outliers = Outliers()
    verdicts = [observe(outliers, uid, 2.0) for _ in range(20) for uid in PEERS]

    assert not any(verdicts)


def test_nobody_is_judged_without_peers_or_for_what_is_quick_anyhow() -> None:
    outliers = Outliers()
    assert not observe(outliers, "slow", 5.0, times=20)

    observe(outliers, "b", 0.001, times=8)
    assert not observe(outliers, "slow", 0.2, times=20)


def test_a_probe_is_judged_by_itself() -> None:
    outliers = Outliers()
    observe(outliers, "b", 0.1, times=8)

    def probe(seconds: float) -> str:
        return outliers.observe("slow", seconds=seconds, expected_seconds=0.1, peers=PEERS, now=0, alone=True)

    assert probe(2.0)
    assert not probe(0.2)


def test_old_answers_are_forgotten() -> None:
    outliers = Outliers()
    observe(outliers, "b", 0.1, times=8, at=0)

    assert not observe(outliers, "slow", 5.0, times=8, at=500)
