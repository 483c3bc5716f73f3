"""Which responses are given up for silence: sweeps are ticks, so the test is the clock."""

from warmfleet_router.workers.liveness import TICK_SECONDS, LivenessSettings, LivenessWatch, ResponseKind


class Bench:
    def __init__(self, **worker_silence: float) -> None:
        self.worker_silence = worker_silence
        self.hung: list[str] = []
        self.given_up: list[str] = []
        self.watch = LivenessWatch(LivenessSettings(hung_seconds=3.0, answer_seconds=30.0))

    def headers(self, uid, kind=ResponseKind.STREAM):
        return self.watch.headers(uid, kind, lambda: self.given_up.append(uid))

    def body(self, uid, kind=ResponseKind.STREAM):
        return self.watch.body(uid, kind, lambda: self.given_up.append(uid))

    def pass_seconds(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.watch.sweep(self.worker_silence.__getitem__, self.hung.append)


def test_a_long_prefill_is_waited_for_while_the_worker_lives() -> None:
    bench = Bench(alive=0.5)
    with bench.headers("alive"), bench.headers("alive", ResponseKind.WHOLE):
        bench.pass_seconds(3600)

    assert bench.given_up == []


def test_silence_on_both_channels_for_three_seconds_ends_every_exchange_of_that_worker_alone() -> None:
    bench = Bench(stopped=10.0, alive=0.1)
    with bench.headers("stopped"), bench.headers("stopped", ResponseKind.WHOLE), bench.headers("alive"):
        bench.pass_seconds(2.75)
        assert bench.given_up == []
        bench.pass_seconds(0.25)
        assert bench.given_up == ["stopped", "stopped"]
        assert set(bench.hung) == {"stopped"}
        bench.pass_seconds(10)

    assert bench.given_up == ["stopped", "stopped"]


def test_an_answer_that_arrives_keeps_its_worker_alive_without_any_event_stream() -> None:
    bench = Bench(mute=100.0)
    with bench.body("mute") as read:
        for _ in range(40):
            read.begin()
            bench.pass_seconds(2)
            read.end()

    assert bench.given_up == []


def test_time_that_a_slow_client_takes_is_not_the_workers() -> None:
    bench = Bench(stopped=100.0)
    with bench.body("stopped"):
        bench.pass_seconds(100)

    assert bench.given_up == []


def test_a_stream_without_pings_is_lost_although_its_worker_lives() -> None:
    bench = Bench(alive=0.1)
    with bench.body("alive") as stream, bench.body("alive", ResponseKind.WHOLE) as plain:
        for read in (stream, plain):
            read.begin()
        bench.pass_seconds(30)

    assert bench.given_up == ["alive"]


def test_an_event_stream_keeps_its_own_deadlines() -> None:
    bench = Bench(idle=11.0)
    with bench.headers("idle", ResponseKind.EVENTS):
        bench.pass_seconds(100)

    assert (bench.given_up, bench.hung) == ([], [])


def test_a_router_that_was_stopped_gives_up_no_worker() -> None:
    """An hour passes between two ticks: every frame is an hour old by the clock, one tick by the watch."""
    bench = Bench(alive=3600.0)
    with bench.headers("alive"):
        bench.pass_seconds(TICK_SECONDS)

    assert (bench.given_up, bench.hung) == ([], [])
