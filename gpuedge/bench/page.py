"""Results as one HTML page with drawings (SVG) in it: no script, no file beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

import numpy as np

from gpuedge.bench.history import JudgedPoint, histories
from gpuedge.bench.results import BenchResult
from gpuedge.bench.tables import MARKS, result_tables
from gpuedge.core.text import Table, duration, plain

WIDTH, LEFT, RIGHT = 720, 100, 64
"""Of a drawing, and its margins for labels, in pixels."""

ROW, PLOT, AXIS = 56, 260, 34
"""Height of a subject's row with its name, of the drawing of a history, and of the axis."""

MOST_POINTS = 400
"""Runs that a row shows as points: evenly chosen where there are more."""

COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#9a6700", "#57606a")
STATES = {"slower": "#cf222e", "faster": "#1a7f37", "suspect": "#bf8700"}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1160px; padding: 0 16px; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin: 2em 0 .3em; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { font: 14px system-ui, sans-serif; fill: #57606a; }
svg .name { fill: #000; } p { margin: .3em 0; color: #57606a; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; } caption { font-weight: 600; }
caption, th, td { text-align: left; padding: 3px 14px 3px 0; } tr { border-bottom: 1px solid #ccc; }
@media (max-width: 800px) { svg text { font-size: 22px; } th { display: none; }
  table, tbody, tr, caption { display: block; } td { display: flex; overflow-wrap: anywhere; }
  td::before { content: attr(title); flex: 0 0 34%; color: #57606a; } }
"""


def page(results: Sequence[BenchResult], told: Sequence[str | Table] = ()) -> str:
    """Return the page: for each case its latest latencies, and its history if there is one.

    What was `told` of all of them stands above.
    """
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>gpuedge bench</title>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style><h1>gpuedge bench</h1>",
        "<p>Points are warm runs; the thick line runs from p50 to p90, the tick is p99, the grey "
        "bar is the 95 % interval of p50. Logarithmic scale.</p>",
        f"<p>{_text(MARKS)}</p>",
    ]
    for one in told:
        if isinstance(one, str):
            parts.append(f"<p>{_text(one)}</p>")
        elif one.rows:
            parts.append(_table(one))
    for case in dict.fromkeys(result.case for result in results):
        members = [result for result in results if result.case == case]
        parts.append(f"<h2>{_text(case)}</h2>")
        for machine in dict.fromkeys(r.machine for r in members):
            latest = list({r.subject: r for r in members if r.machine == machine}.values())
            dates = sorted({r.when[:16] for r in latest})
            when = " to ".join(dates[:: max(1, len(dates) - 1)])
            pythons = ", ".join(sorted({r.python for r in latest if r.python}))
            parts.append(f"<p>{_text(f'{machine}, {when} UTC, Python {pythons}')}</p>")
            if timed := [r for r in latest if r.blocks]:
                parts.append(_latencies(timed))
            parts += [_table(one) for one in result_tables(latest) if one.rows]
        for (_, subject, machine), history in histories(members).items():
            if len(history) > 2:
                parts.append(f"<p>{_text(subject)} on {_text(machine)}, run by run</p>")
                parts.append(_history(history))
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    return escape(plain(text, 200))


def _table(one: Table) -> str:
    parts = [f"<table><caption>{_text(one.title)}</caption>"]
    heads, *rows = one.cells
    for row, tag in ((heads, "th"), *((row, "td") for row in rows)):
        pairs = ((_text(head), _text(cell)) for head, cell in zip(heads, row, strict=True))
        parts += ["<tr>", *(f'<{tag} title="{head}">{cell}</{tag}>' for head, cell in pairs)]
    return "".join([*parts, "</table>"])


class _Scale:
    """A logarithmic axis from the smallest to the largest of some numbers, in pixels."""

    def __init__(self, values: Iterable[float], first: float, last: float) -> None:
        known = list(values)
        low, high = math.log(min(known)), math.log(max(known))
        room = max(0.02, (high - low) * 0.04)
        self._low, self._high, self._first, self._last = low - room, high + room, first, last

    def at(self, value: float) -> float:
        """Return where a number lies."""
        share = (math.log(value) - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Return up to six round numbers, so far apart that labels fit."""
        low, high = math.exp(self._low), math.exp(self._high)
        for steps in ((1,), (1, 3), (1, 2, 5), tuple(np.arange(1, 10, 0.5)),
                      tuple(np.arange(1, 10, 0.1)), tuple(np.arange(1, 10, 0.01))):  # fmt: skip
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            found = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
            if len(found) >= 4:
                break
        kept = found[:1] or [low]
        for tick in found[1:]:
            if abs(self.at(tick) - self.at(kept[-1])) >= abs(self._last - self._first) / 6:
                kept.append(tick)
        return kept


def _latencies(results: Sequence[BenchResult]) -> str:
    scale = _Scale((ns for r in results for ns in r.warm), RIGHT, WIDTH - RIGHT)
    height = ROW * len(results) + AXIS
    parts = [_open(height)]
    for tick in scale.ticks():
        x = scale.at(tick)
        parts += [_line(x, 6, x, height - AXIS, "#eaeef2"), _label(x, height - 8, duration(tick))]
    for at, result in enumerate(results):
        middle, colour = ROW * (at + 1) - 14, COLOURS[at % len(COLOURS)]
        parts.append(f'<text class=name x=0 y="{middle - 18}">'
                     f"{_text(plain(result.subject, 30))}</text>")  # fmt: skip
        parts += _row(result, scale, middle, colour)
    return "".join([*parts, "</svg>"])


def _row(result: BenchResult, scale: _Scale, middle: float, colour: str) -> Iterator[str]:
    p50, p90, p99 = result.latency().values()
    low, high = scale.at(p50.low or p50.value), scale.at(p50.high or p50.value)
    yield (f'<rect x="{low:.1f}" y="{middle - 11}" width="{max(1.0, high - low):.1f}" '
           f'height=22 fill="#afb8c1" opacity=.6 />')  # fmt: skip
    runs = result.warm[:: -(-len(result.warm) // MOST_POINTS)]
    for at, ns in enumerate(runs):  # spread over the row by order, so that drift can be seen
        y = middle - 9 + 18 * at / max(1, len(runs) - 1)
        yield f'<circle cx="{scale.at(ns):.1f}" cy="{y:.1f}" r=1.6 fill="{colour}" opacity=.45 />'
    yield _line(scale.at(p50.value), middle, scale.at(p90.value), middle, colour, width=4)
    yield _line(scale.at(p99.value), middle - 8, scale.at(p99.value), middle + 8, colour, width=2)
    yield _line(
        scale.at(p50.value), middle - 11, scale.at(p50.value), middle + 11, "#1f2328", width=2
    )


def _history(judged: Sequence[JudgedPoint]) -> str:
    values = [math.exp(one.point.log_median) for one in judged]
    scale = _Scale(values, PLOT - AXIS - 6, 12)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(judged) - 1)
    parts = [_open(PLOT)]
    for tick in scale.ticks():
        y = scale.at(tick)
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#eaeef2"))
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor=end>{duration(tick)}</text>'
        )
    places = [(LEFT + step * at, scale.at(value)) for at, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{path}" fill=none stroke="#8c959f" />')
    for (x, y), one in zip(places, judged, strict=True):
        colour = STATES.get(one.state, "#57606a")
        tip = f"{one.point.when} {one.point.commit[:12]}: {one.state}"
        size = 5 if one.state in STATES else 3
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r={size} fill="{colour}">'
                     f"<title>{_text(tip)}</title></circle>")  # fmt: skip
        if one.state in ("slower", "faster"):
            parts.append(_label(x, y - 10 if y > 30 else y + 20, f"{one.ratio:.2f}x"))
    parts.append(_label(places[0][0], PLOT - 8, judged[0].point.when[:10]))
    parts.append(_label(places[-1][0], PLOT - 8, judged[-1].point.when[:10]))
    return "".join([*parts, "</svg>"])


def _open(height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" width={WIDTH} height={height} role=img>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, *, width: float = 1) -> str:
    return (f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" '
            f"stroke-width={width} />")  # fmt: skip


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor=middle>{_text(text)}</text>'
