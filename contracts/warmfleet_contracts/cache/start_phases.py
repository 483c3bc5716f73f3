"""How long the phases of a worker's start took, as the worker measures them and routers pass on."""

from typing import Annotated, Final

import msgspec

MAX_PHASE_SECONDS: Final = 1e6
PhaseSeconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_PHASE_SECONDS)]


class StartPhases(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds, one phase after the other; None: not over yet, or not measured.

    Part of a frame: a further phase raises `CONTRACT_VERSION`. What people read of phases names it, too:
    docs/reference/workers-in-a-cluster.md and `status.lastStart` of the resource.
    """

    process: PhaseSeconds | None = None
    """From the start of the worker's process until its engine process runs."""
    imports: PhaseSeconds | None = None
    """Until the engine has imported its libraries."""
    load: PhaseSeconds | None = None
    """Until weights are loaded and the KV cache is allocated."""
    prewarm: PhaseSeconds | None = None
    """Until it takes requests: routers have prefixes computed, or none comes."""
    first_token: PhaseSeconds | None = None
    """Of its first request, from its arrival to its first token."""

    def by_name(self) -> dict[str, float]:
        """The phases that are over."""
        phases = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: seconds for name, seconds in phases.items() if seconds is not None}
