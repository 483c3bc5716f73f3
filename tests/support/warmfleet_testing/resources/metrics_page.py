"""The operator's metrics page, and values on it."""

from typing import Any

from warmfleet_operator.metrics import OperatorMetrics

_NO_GAUGES: dict[str, Any] = {
    "depth": 0,
    "leading": True,
    "behind": {},
    "objects": {},
    "conditions": {},
    "states": {},
    "advice": {},
}


def metrics_page(metrics: OperatorMetrics | None = None, **gauges: Any) -> str:
    """The page with these values for its gauges (`OperatorMetrics.render`), and none for the others."""
    return (metrics or OperatorMetrics()).render(**_NO_GAUGES | gauges).decode()


def metric(metrics: OperatorMetrics, series: str) -> float:
    """The value of one series, named as the page has it."""
    lines = metrics_page(metrics).splitlines()
    return next(float(line.removeprefix(f"{series} ")) for line in lines if line.startswith(f"{series} "))
