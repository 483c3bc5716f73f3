"""One model's workers at one moment: who is ready, how loaded each is, who has room."""

from collections.abc import Collection, Sequence

from warmfleet_router.cost import WorkerLoad
from warmfleet_router.endpoints import EndpointView
from warmfleet_router.picker import Picker
from warmfleet_router.room import Full, Need, RoomRule, lacking

PRIOR_BLOCK_TOKENS = 16


class FleetNow:
    """Workers that can be given requests now; a load is brought up to date after each dispatch."""

    def __init__(
        self, model: str, views: Sequence[EndpointView], picker: Picker, tried: Collection[str] = ()
    ) -> None:
        """`tried` workers are left out, as are those that are ejected."""
        self.model = model
        self.views = views
        self._picker = picker
        self.ready = {view.endpoint.uid: view for view in picker.eligible(views, tried)[0]}
        self.loads: dict[str, WorkerLoad] = {uid: picker.load(view) for uid, view in self.ready.items()}
        self._rates = picker.rates(views)
        self.seats = sum(load.max_running_sequences for load in self.loads.values())
        """Of all of them; 0 while they are unknown."""
        sizes = [view.hello.block_size_tokens for view in self.ready.values() if view.hello is not None]
        self.block_size_tokens = max(sizes, default=PRIOR_BLOCK_TOKENS)

    def charged(self, uid: str) -> None:
        """A request was sent to `uid`."""
        self.loads[uid] = self._picker.load(self.ready[uid])

    def lacks(self, need: Need, rule: RoomRule, tried: Collection[str] = ()) -> set[Full | None]:
        """What the workers lack for `need`, but for those `tried`; None is among it if one has room."""
        return {
            lacking(load, self._rates[uid], need, rule)
            for uid, load in self.loads.items()
            if uid not in tried
        }

    def has_room(self, need: Need, rule: RoomRule, tried: Collection[str] = ()) -> bool:
        """Whether `need` fits anywhere."""
        return None in self.lacks(need, rule, tried)
