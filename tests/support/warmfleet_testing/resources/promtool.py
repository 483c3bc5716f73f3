"""Prometheus' own promtool: what alerts and PromQL expressions yield over given series.

`python -m warmfleet_testing.resources.promtool` builds it from the Go module in tests/promtool.
"""

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warmfleet_devcluster.control_plane.binaries import GoModule, find_binaries
from warmfleet_devcluster.control_plane.build import main
from warmfleet_runtime.home import warmfleet_home

PROMTOOL: Final = GoModule(
    "promtool",
    Path(__file__).parents[3] / "promtool",
    {"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
)

MINUTES: Final = 21
"""How long a test without series goes on."""

Groups = Sequence[Mapping[str, Any]]
"""Of rules, as a PrometheusRule has them."""
Samples = Sequence[float | None]
"""One per minute, the last one is now; None where the target was gone."""


def check_rules(groups: Groups) -> None:
    """Fail if `promtool check rules` finds a fault in a PrometheusRule's groups."""
    with tempfile.TemporaryDirectory() as folder:
        _promtool(
            "check", "rules", "--lint=all", "--lint-fatal", _written(folder, "rules", {"groups": groups})
        )


def expect_alerts(
    groups: Groups, alert: str, series: Mapping[str, Samples], labels: Sequence[Mapping[str, str]]
) -> None:
    """Fail unless `alert` fires now once for each of `labels`, in which those of the rule are left out.

    expect_alerts(groups, "Down", {'up{job="a"}': [0, 0, 0]}, [{"job": "a"}])
    """
    (rule,) = [rule for group in groups for rule in group["rules"] if rule["alert"] == alert]
    state = {"alertname": alert, "alertstate": "firing"}
    samples = [
        {"labels": series_name("ALERTS", {**rule["labels"], **state, **found}), "value": 1}
        for found in labels
    ]
    _expect([(series_name("ALERTS", state), samples)], series, groups)


def expect_no_alert(groups: Groups, series: Mapping[str, Samples]) -> None:
    """Fail if any alert fires now."""
    _expect([('ALERTS{alertstate="firing"}', [])], series, groups)


def expect_results(expressions: Iterable[str], series: Mapping[str, Samples]) -> None:
    """Fail if one of `expressions` yields nothing now."""
    _expect([(f"group({expression})", [{"labels": "{}", "value": 1}]) for expression in expressions], series)


def _expect(
    tests: Iterable[tuple[str, Sequence[Mapping[str, Any]]]],
    series: Mapping[str, Samples],
    groups: Groups = (),
) -> None:
    """Fail unless each expression yields its samples at the last minute of `series`."""
    now = f"{max(map(len, series.values()), default=MINUTES) - 1}m"
    document = {
        "interval": "1m",
        "input_series": [{"series": name, "values": _values(samples)} for name, samples in series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": now, "exp_samples": samples} for expression, samples in tests
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        rules = _written(folder, "rules", {"groups": groups})
        test = {"rule_files": [rules], "evaluation_interval": "1m", "tests": [document]}
        _promtool("test", "rules", _written(folder, "test", test))


def _promtool(*arguments: str) -> None:
    binary = find_binaries(warmfleet_home(), PROMTOOL)["promtool"]
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _written(folder: str, name: str, document: Mapping[str, Any]) -> str:
    path = Path(folder) / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


def series_name(metric: str, labels: Mapping[str, str]) -> str:
    """The name of a series, as in an exposition: `metric{label="value"}`."""
    return f"{metric}{{{','.join(f'{name}={json.dumps(value)}' for name, value in labels.items())}}}"


def _values(samples: Samples) -> str:
    """In promtool's notation: a target that goes away leaves a marker that its series ended."""
    words = []
    for before, sample in itertools.pairwise((None, *samples)):
        if sample is not None:
            words.append(str(sample))
        else:
            words.append("_" if before is None else "stale")
    return " ".join(words)


if __name__ == "__main__":
    main(PROMTOOL)
