"""Generated workloads by their names, as `warmfleet simulate --generate` has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, get_args

import msgspec

from warmfleet_simulator.errors import UnknownNameError, WorkloadError
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.traces.traffic import Reading
from warmfleet_simulator.workloads.agents import Agents
from warmfleet_simulator.workloads.bursty import Bursty
from warmfleet_simulator.workloads.diurnal import Diurnal
from warmfleet_simulator.workloads.shared_prompts import SharedPrompts
from warmfleet_simulator.workloads.steady import Steady

AnyWorkload = Steady | Bursty | SharedPrompts | Diurnal | Agents
WORKLOADS: Final = {kind.__struct_config__.tag: kind for kind in get_args(AnyWorkload)}


def workload_of(text: str) -> AnyWorkload:
    """The workload of `name,field=value,...`; fields that are not given have their defaults.

    Raises:
        SimulationError: a name is unknown, or a value impossible; the text names it.
    """
    name, *settings = (part.strip() for part in text.split(","))
    if name not in WORKLOADS:
        raise UnknownNameError("workload", name, WORKLOADS)
    fields = dict[str, str]()
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals:
            raise WorkloadError(f"{name}: {setting[:64]!r} is not field=value")
        fields[field.strip()] = value.strip()
    try:
        workload: AnyWorkload = msgspec.convert({**fields, "name": name}, AnyWorkload, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(WORKLOADS[name]))
        raise WorkloadError(f"{name}: {error}; its fields are {known}") from error
    return workload


class GeneratedTraffic:
    """The requests of a workload."""

    def __init__(self, workload: AnyWorkload) -> None:
        self._workload = workload

    @property
    def name(self) -> str:
        """With every field, as `workload_of` takes it."""
        fields = msgspec.to_builtins(self._workload)
        return ",".join([fields.pop("name"), *(f"{field}={value}" for field, value in fields.items())])

    @contextmanager
    def open(self) -> Iterator[Reading]:
        """Generate them; each time the same ones."""
        workload, made = self._workload, 0

        def requests() -> Iterator[TraceRequest]:
            nonlocal made
            for request in workload.generate():
                made += 1
                yield request

        yield Reading(requests(), lambda: made / workload.requests)
