"""The pages about metrics and alerts hold what the code registers and the chart installs."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from warmfleet_contracts import metrics as names
from warmfleet_contracts.names import OPERATOR_METRICS_PORT, ROUTER_PORT, WORKER_PORT
from warmfleet_testing.documents.documents import REPOSITORY, fences, tables
from warmfleet_testing.documents.generated_page import with_tables
from warmfleet_testing.documents.metrics_reference import (
    PAGE,
    QUESTIONS,
    VALUES,
    Exported,
    exported,
    metric_tables,
)
from warmfleet_testing.resources.promtool import expect_results, series_name

ALERTS_PAGE: Final = REPOSITORY / "docs/how-to/alerts.md"
CHART_FILES: Final = REPOSITORY / "charts/warmfleet/files"
ALERTS: Final[list[dict[str, Any]]] = yaml.safe_load((CHART_FILES / "alerts.yaml").read_text())["alerts"]
PAGES: Final = (PAGE, ALERTS_PAGE)
METRICS: Final = exported()
SAMPLES: Final = {sample: metric for metric in METRICS.values() for sample in metric.samples}

NAME: Final = re.compile(r"\b(?:vllm:|warmfleet_(?:router|worker|operator)_)[a-z0-9_]*[a-z0-9]\b")
MATCHERS: Final = re.compile(r"\{([^}]*)\}")
MATCHER: Final = re.compile(r'([a-z_]+)(=~|!~|!=|=)"([^"]*)"')
GROUPING: Final = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right) \(([^)]*)\)")
TARGET_LABELS: Final = frozenset({"namespace", "pod", "service"})
"""What Prometheus adds to the series of a pod."""
PARTS: Final = ("For users", "Causes", "Look at", "Do", "Ignore it")
"""Of each section about an alert, in this order."""
DERIVED: Final = frozenset(
    {
        (names.WORKER_ENGINE_INFO, "kernels"),
        (names.WORKER_ENGINE_INFO, "exact"),
        (names.WORKER_START_PHASE_SECONDS, "phase"),
        (names.OPERATOR_DEPLOYMENT_START_SECONDS, "phase"),
        (names.OPERATOR_ERRORS, "error"),
    }
)
"""Labels whose values the code makes of other names: nowhere in it they stand in quotes."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def dashboard_queries() -> list[str]:
    panels = json.loads((CHART_FILES / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def page_queries(page: Path) -> list[str]:
    return [" ".join(fence.text.split()) for fence in fences(page.read_text()) if fence.language == "promql"]


QUERIES: Final = [query for page in PAGES for query in page_queries(page)]


def sections() -> dict[str, str]:
    """The text below each heading of the page about alerts."""
    parts = re.split(r"^## (.+)$", ALERTS_PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def unknown_in(query: str) -> Iterator[str]:
    """Metrics, labels and values of labels in a query that no component exports."""
    metrics = [SAMPLES.get(name) for name in NAME.findall(MATCHERS.sub("", query))]
    if not metrics or None in metrics:
        yield f"a metric of {query}"
    known = {metric for metric in metrics if metric is not None}
    labels = {label for metric in known for label in metric.labels} | TARGET_LABELS
    if any(metric.kind == "histogram" for metric in known):
        labels |= {"le"}
    grouped = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")} - {""}
    yield from sorted(grouped - labels)
    for label, _, value in MATCHER.findall(query):
        if label not in labels:
            yield label
        elif label not in TARGET_LABELS and not any(has_value(metric, label, value) for metric in known):
            yield f"{label}={value}"


def has_value(metric: Exported, label: str, pattern: str) -> bool:
    known = VALUES.get(metric.name, {}).get(label)
    return isinstance(known, tuple) and set(pattern.split("|")) <= set(known)


def some_series(query: str) -> dict[str, list[float]]:
    """Series that rise, of every sample that a query names and every value of its labels."""
    found: dict[str, list[float]] = {}
    for name in NAME.findall(MATCHERS.sub("", query)):
        metric = SAMPLES[name]
        for labels in some_labels(metric, name):
            found[series_name(name, labels)] = [float(minute) for minute in range(1, 91)]
    return found


def some_labels(metric: Exported, name: str) -> Iterator[Mapping[str, str]]:
    plain = dict.fromkeys((*TARGET_LABELS, *metric.labels), "x")
    if name.endswith("_bucket"):
        plain |= {"le": "+Inf"}
    known = {
        label: values
        for label, values in VALUES.get(metric.name, {}).items()
        if isinstance(values, tuple) and label in metric.labels
    }
    for chosen in itertools.product(*known.values()):
        yield plain | dict(zip(known, chosen, strict=True))


def test_the_tables_are_made_from_the_metrics_that_are_registered() -> None:
    page = PAGE.read_text()

    assert "`make reference`" in page
    assert with_tables(page, metric_tables(METRICS)) == page


def test_every_metric_is_registered_and_stands_in_one_table() -> None:
    declared = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and value != names.VLLM_PREFIX
    }
    listed = [name for uses in QUESTIONS.values() for name in uses]

    assert set(METRICS) == declared
    assert sorted(listed) == sorted(METRICS)


def test_every_metric_has_a_sentence_of_its_own() -> None:
    texts = [metric.text for metric in METRICS.values() if metric.name != names.WORKER_IGNORED_FIELDS]

    assert len(set(texts)) == len(texts)
    for text in texts:
        assert re.fullmatch(r"[A-Z0-9].*\.", text), text


@pytest.mark.parametrize("name", VALUES)
def test_the_values_of_labels_stand_in_the_code(name: str) -> None:
    metric = METRICS[name]
    sources = "".join(
        path.read_text()
        for package in ("contracts", metric.component)
        for path in (REPOSITORY / package / f"warmfleet_{package}").rglob("*.py")
    )

    assert set(VALUES[name]) <= set(metric.labels)
    for label, values in VALUES[name].items():
        if isinstance(values, tuple) and (name, label) not in DERIVED:
            assert [value for value in values if f'"{value}"' not in sources] == [], label


def test_the_page_has_the_ports_at_which_metrics_are_scraped() -> None:
    (rows,) = [table[1:] for table in tables(PAGE.read_text()) if table[0][0] == "pod"]

    assert {row[0]: row[1].partition(",")[0] for row in rows} == {
        "router": str(ROUTER_PORT),
        "worker": str(WORKER_PORT),
        "operator": str(OPERATOR_METRICS_PORT),
    }


@every_page
def test_a_metric_that_is_named_exists(page: Path) -> None:
    prose = re.sub(r"`(?:vllm:|warmfleet_[a-z_]+_\.\.\.)`", "", page.read_text())
    scraped = {metric.scraped_name for metric in METRICS.values()} | set(SAMPLES)

    assert [name for name in NAME.findall(prose) if name not in scraped] == []


def test_every_value_of_a_label_that_the_page_explains_exists() -> None:
    text = PAGE.read_text().partition("## Values of labels")[2].partition("## Queries")[0]
    outcomes, causes, reasons = (
        {value for row in table[1:] for value in row[0].split(", ")} for table in tables(text)
    )

    assert outcomes == set(VALUES[names.ROUTER_REQUESTS]["outcome"])
    assert causes == set(VALUES[names.ROUTER_MISSED_TOKENS]["cause"])
    assert reasons == set(VALUES[names.ROUTER_OVERLOADED]["reason"])


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_pages_asks_for_what_is_exported(query: str) -> None:
    assert list(unknown_in(query)) == []


def test_every_query_of_the_pages_yields_something() -> None:
    assert len(QUERIES) > 20
    series = {name: values for query in QUERIES for name, values in some_series(query).items()}

    expect_results(QUERIES, series)


def test_alerts_and_dashboard_ask_for_labels_that_are_exported() -> None:
    queries = [alert["expr"] for alert in ALERTS] + dashboard_queries()

    assert [(query, found) for query in queries for found in unknown_in(query)] == []


@pytest.mark.parametrize(
    "planted",
    [
        "sum(warmfleet_router_request_total)",
        "sum(rate(warmfleet_router_requests[5m]))",
        "sum by (model) (warmfleet_router_held_requests)",
        'warmfleet_router_endpoints{status="ready"}',
        'warmfleet_router_endpoints{state="asleep"}',
        'rate(warmfleet_router_requests_total{outcome=~"failed|lost"}[5m])',
        "sum by (le) (warmfleet_router_held_requests)",
    ],
)
def test_what_no_component_exports_is_found(planted: str) -> None:
    assert list(unknown_in(planted))


def test_every_alert_has_a_section_and_every_section_an_alert() -> None:
    assert list(sections()) == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_section_begins_with_severity_and_time_and_answers_each_question(alert: dict[str, Any]) -> None:
    section = sections()[alert["alert"]].strip()
    after = f"after {alert['for'].removesuffix('m')} minutes" if "for" in alert else "at once"

    assert section.startswith(f"Severity {alert['labels']['severity']}, {after}.")
    assert re.findall(r"^- \*\*([\w ]+)\*\*", section, re.MULTILINE) == list(PARTS)
