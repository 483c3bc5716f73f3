"""The highest and lowest number of a time window, against the naive list of everything."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_operator.scaling.entries import Entries, with_highest, with_lowest

TICKS = st.lists(st.tuples(st.sampled_from((0.5, 2.0, 7.0)), st.integers(0, 20)), min_size=1, max_size=60)


@given(TICKS, st.sampled_from((0.0, 1.0, 10.0, 300.0)))
def test_a_window_knows_its_extremes(ticks, window_seconds):
    everything: list[tuple[float, int]] = []
    highest: Entries = ()
    lowest: Entries = ()
    now = 0.0
    for pause, number in ticks:
        now += pause
        everything.append((now, number))
        highest = with_highest(highest, now, number, window_seconds)
        lowest = with_lowest(lowest, now, number, window_seconds)
        within = [value for at, value in everything if at >= now - window_seconds]
        assert highest[0][1] == max(within)
        assert lowest[0][1] == min(within)
        assert max(len(highest), len(lowest)) <= 21, "one entry per different number"
