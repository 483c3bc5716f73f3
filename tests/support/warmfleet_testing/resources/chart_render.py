"""The chart, rendered by Helm itself."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

REPOSITORY: Final = Path(__file__).parents[4]
CHART: Final = REPOSITORY / "charts" / "warmfleet"
REGISTRY: Final = {"images": {"registry": "registry.example.com/warmfleet"}}
CASES: Final = ("default", "minimal", "ha", "namespaced", "everything")


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one installation would send to the API server, and what the user would read."""

    objects: tuple[dict[str, Any], ...]
    notes: str

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.objects if item["kind"] == kind]

    def get(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = [item for item in self.of_kind(kind) if item["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and pod (metadata, spec) of everything that becomes one."""
        for item in self.objects:
            if item["kind"] == "Pod":
                yield item["metadata"]["name"], item
            elif item["kind"] in {"Deployment", "Job", "DaemonSet", "StatefulSet"}:
                yield item["metadata"]["name"], item["spec"]["template"]


def case_values(case: str) -> dict[str, Any]:
    """The values of one of the cases in the chart's ci folder."""
    values: dict[str, Any] = yaml.safe_load(
        (CHART / "ci" / f"{case}-values.yaml").read_text(encoding="utf-8")
    )
    return values


def render(
    values: Mapping[str, Any] | None = None, *, name: str = "warmfleet", namespace: str = "models"
) -> Rendered:
    """`helm template`.

    Raises:
        HelmValuesError: the schema refuses the values.
        HelmRenderError: a template does.
    """
    rendered = loaded_chart().render(
        dict(REGISTRY if values is None else values), name=name, namespace=namespace
    )
    notes = "".join(text for path, text in rendered.items() if path.endswith("NOTES.txt"))
    # Parsed in C: in Python it takes four times as long as Helm itself.
    objects = [
        item
        for path, text in sorted(rendered.items())
        if not path.endswith("NOTES.txt")
        for item in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if item
    ]
    return Rendered(tuple(objects), notes)


@functools.cache
def loaded_chart() -> helm_python.Chart:
    helm_python.disable_logging()
    return helm_python.Chart.load(CHART)
