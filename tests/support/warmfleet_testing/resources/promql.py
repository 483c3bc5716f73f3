"""Evaluates the part of PromQL that the chart's alerts are written in, over series with a sample per minute.

A series is named as in an exposition, `metric{label="value"}`; its samples are a list whose last one is now,
with None where there is none. `rate` and `increase` are the difference of the first and the last sample of
their range: no extrapolation. Anything that is not implemented raises, so that no alert passes unread.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = Sequence[float | None]

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<text>"[^"]*")'
    r"|(?P<range>\[\d+m\])|(?P<sign>==|!=|>=|<=|[-+*/<>=(){},]))"
)
_MATCHER: Final = re.compile(r'([a-z_]+)="([^"]*)"')
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_AGGREGATIONS: Final[Mapping[str, Callable[[list[float]], float]]] = {"max": max, "min": min, "sum": sum}
_METRIC: Final = "__name__"


def fires(expression: str, series: Mapping[str, Samples], *, minutes: int = 0) -> list[dict[str, str]]:
    """Labels of the alerts that have held for `minutes` now.

    assert fires("max(up) == 0", {"up": [0, 0, 0]}, minutes=2) == [{}]
    """
    results = [
        set(_evaluated(expression, {name: values[: len(values) - ago] for name, values in series.items()}))
        for ago in range(minutes + 1)
    ]
    return [dict(sorted(labels)) for labels in sorted(set.intersection(*results), key=sorted)]


def _evaluated(expression: str, series: Mapping[str, Samples]) -> Vector:
    parser = _Parser(expression, {_labels_of(name): values for name, values in series.items()})
    result = parser.expression()
    assert parser.done, f"not read: {parser.rest}"
    assert isinstance(result, dict), "an alert's expression is a vector"
    return {_without_name(labels): value for labels, value in result.items()}


def _labels_of(name: str) -> Labels:
    metric, _, rest = name.partition("{")
    return frozenset({(_METRIC, metric), *_MATCHER.findall(rest)})


def _without_name(labels: Labels) -> Labels:
    return frozenset(item for item in labels if item[0] != _METRIC)


class _Parser:
    """Reads an expression and evaluates it on the way."""

    def __init__(self, text: str, series: Mapping[Labels, Samples]) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            assert match is not None, f"not PromQL that is known here: {text[position:]}"
            self._tokens.append(match[0].strip())
            position = match.end()
        self._series = series

    @property
    def done(self) -> bool:
        return not self._tokens

    @property
    def rest(self) -> str:
        return " ".join(self._tokens)

    def expression(self) -> Vector | float:
        left = self._matched()
        while self._take("or"):
            left = {**self._vector(self._matched()), **self._vector(left)}
        return left

    def _matched(self) -> Vector | float:
        left = self._compared()
        while self._next() in {"and", "unless"}:
            keep = self._pop() == "and"
            right = {_without_name(labels) for labels in self._vector(self._compared())}
            left = {
                labels: value
                for labels, value in self._vector(left).items()
                if (_without_name(labels) in right) == keep
            }
        return left

    def _compared(self) -> Vector | float:
        left = self._multiplied()
        while self._next() in _COMPARISONS:
            holds = _COMPARISONS[self._pop()]
            right = self._multiplied()
            values = self._vector(left)
            if isinstance(right, float):
                left = {labels: value for labels, value in values.items() if holds(value, right)}
            else:
                others = {_without_name(labels): value for labels, value in right.items()}
                left = {
                    labels: value
                    for labels, value in values.items()
                    if _without_name(labels) in others and holds(value, others[_without_name(labels)])
                }
        return left

    def _multiplied(self) -> Vector | float:
        left = self._primary()
        while self._take("*"):
            right = self._primary()
            assert isinstance(left, float), "only a number is multiplied"
            left = {_without_name(labels): left * value for labels, value in self._vector(right).items()}
        return left

    def _primary(self) -> Vector | float:
        token = self._pop()
        if re.fullmatch(r"[\d.]+", token):
            return float(token)
        if token == "(":
            inner = self.expression()
            self._expect(")")
            return inner
        if token in _AGGREGATIONS:
            return self._aggregated(_AGGREGATIONS[token])
        if token == "absent":
            self._expect("(")
            # Alerts rely on no label of it: only a plain selector would give it any.
            found = self._vector(self.expression())
            self._expect(")")
            return {} if found else {frozenset(): 1.0}
        if token in {"rate", "increase"}:
            self._expect("(")
            found = self._selected(self._pop(), grown=True)
            self._expect(")")
            return found
        return self._selected(token)

    def _aggregated(self, combine: Callable[[list[float]], float]) -> Vector:
        kept: list[str] = []
        if self._take("by"):
            self._expect("(")
            while not self._take(")"):
                kept.append(self._pop())
                self._take(",")
        self._expect("(")
        values = self._vector(self.expression())
        self._expect(")")
        groups: dict[Labels, list[float]] = {}
        for labels, value in values.items():
            groups.setdefault(frozenset(item for item in labels if item[0] in kept), []).append(value)
        return {labels: combine(group) for labels, group in groups.items()}

    def _selected(self, metric: str, *, grown: bool = False) -> Vector:
        wanted = {(_METRIC, metric)}
        if self._take("{"):
            while not self._take("}"):
                label = self._pop()
                self._expect("=")
                wanted.add((label, self._pop().strip('"')))
                self._take(",")
        minutes = int(self._pop()[1:-2]) if grown else 0
        found: Vector = {}
        for labels, samples in self._series.items():
            within = samples[-minutes - 1 :]
            if not wanted <= labels or not within or within[-1] is None:
                continue
            numbers = [sample for sample in within if sample is not None]
            found[_without_name(labels) if grown else labels] = (
                numbers[-1] - numbers[0] if grown else numbers[-1]
            )
        return found

    def _vector(self, value: Any) -> Vector:
        assert isinstance(value, dict), "a number where a vector is needed"
        return value

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _pop(self) -> str:
        return self._tokens.pop(0)

    def _take(self, token: str) -> bool:
        if self._next() != token:
            return False
        self._pop()
        return True

    def _expect(self, token: str) -> None:
        found = self._pop()
        assert found == token, f"{token} expected, {found} found before: {self.rest}"
