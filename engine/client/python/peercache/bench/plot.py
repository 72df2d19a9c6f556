# SPDX-License-Identifier: Apache-2.0
"""Draws line plots as SVG for HTML reports: of peercache-bench, and of perf/report.py.

A series is a dict: "title", "x_label", "y_label", "x" (numbers or texts) and "lines" (name -> one
number or None for each x). This file needs the standard library only and imports nothing of the
package, because perf/ uses it without a build. Any thread.
"""

import html
import math
from typing import Any, Iterable, Iterator, Optional, Sequence

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .25em .8em; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top } td.n { text-align: right; white-space: nowrap }
.met { color: #17692b } .not { color: #a51d1d; font-weight: bold }
.modelled { background: #fff3cd; padding: 0 .4em; border-radius: .3em; font-size: 85% }
pre { background: #f4f4f4; padding: .6em; overflow-x: auto } svg { max-width: 100%; height: auto }
"""
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, HEIGHT = 720, 400  # of a plot, in px
LEFT, RIGHT, TOP, BOTTOM = 78, 16, 56, 48  # margins around the axes, in px
LETTER = 7  # width of a letter, in px, at most
DASHED = ("ceiling", "goal", "memcpy", "bare")  # words in the name of a line that is a reference
X_TICKS_MAX = 12
CLASS = ' class="n"'  # of a cell that is aligned to the right
MARKED_MAX = 64  # points of a line that are marked


def text(value: Any) -> str:
    """The value as text that HTML shows."""
    return html.escape(str(value))


def number(value: Any) -> bool:
    """True for a finite number that is no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def amount(value: float) -> str:
    """The number as text: three significant digits; from 1000 on, and for integers, all digits."""
    if isinstance(value, int) or value == int(value) or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.3g}"


def short(value: float) -> str:
    """The number as text for a tick: 1500000 is 1.5 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def tick_step(most: float) -> float:
    """The distance of at most six ticks from 0 to `most`: 1, 2 or 5 times a power of ten."""
    if not most > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= most * .999)


def places(x: Sequence[Any]) -> list[float]:
    """Where each x stands, from 0 to 1: by its logarithm if x spans a factor of 16 or more."""
    if not all(map(number, x)) or len(set(x)) < 2:
        return [(i + .5) / len(x) for i in range(len(x))] if len(x) else []
    values = [float(v) for v in x]
    if min(values) > 0 and len(values) > 2 and max(values) / min(values) >= 16:
        values = [math.log2(v) for v in values]
    low, high = min(values), max(values)
    return [(v - low) / (high - low) for v in values]


class Axes:
    """The area of one plot: turns values into px."""

    def __init__(self, series: dict[str, Any]) -> None:
        self.x = list(series["x"])
        self.at = [LEFT + 14 + p * (WIDTH - LEFT - RIGHT - 28) for p in places(self.x)]
        known = [p for line in series["lines"].values() for p in line if number(p)]
        self.step = tick_step(max(known, default=0))
        self.top = max(self.step * math.ceil(max(known, default=1) / self.step * .999), self.step)

    def height(self, value: float) -> float:
        """The y of a value, in px."""
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> Iterator[str]:
        """Ticks, their labels and the lines of the grid."""
        for i in range(round(self.top / self.step) + 1):
            y = self.height(i * self.step)
            yield (f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'stroke="#ddd"/><text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                   f'{text(short(i * self.step))}</text>')
        shown = range(0, len(self.x), max(1, math.ceil(len(self.x) / X_TICKS_MAX)))
        for i in shown:
            label = f"{self.x[i]:g}" if number(self.x[i]) else self.x[i]
            yield (f'<text x="{self.at[i]:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                   f'{text(label)}</text>')

    def line(self, points: Sequence[Optional[float]]) -> Iterator[list[tuple[float, float]]]:
        """The parts of a line in px; a value that is None makes a gap."""
        part: list[tuple[float, float]] = []
        for at, point in zip(self.at, points):
            if number(point):
                part.append((at, self.height(float(point or 0))))
            elif part:
                yield part
                part = []
        if part:
            yield part


def drawn_line(axes: Axes, name: str, points: Sequence[Optional[float]], color: str
               ) -> Iterator[str]:
    """One line and its marks."""
    dash = ' stroke-dasharray="6 4"' if any(word in name for word in DASHED) else ""
    for part in axes.line(points):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in part)
        yield (f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"'
               f'{dash}/>')
        if len(points) <= MARKED_MAX:
            yield "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
                          for x, y in part)


def svg(series: dict[str, Any]) -> str:
    """The plot of a series as an SVG element."""
    axes = Axes(series)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif" '
           f'font-size="12"><title>{text(series["title"])}</title>'
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
           f'<text x="{WIDTH / 2:.0f}" y="20" text-anchor="middle" font-size="14">'
           f'{text(series["title"])}</text>', *axes.grid()]
    legend = LEFT
    for i, (name, points) in enumerate(series["lines"].items()):
        color = COLORS[i % len(COLORS)]
        out += drawn_line(axes, name, points, color)
        out.append(f'<rect x="{legend}" y="35" width="14" height="10" fill="{color}"/>'
                   f'<text x="{legend + 18}" y="44">{text(name)}</text>')
        legend += 34 + LETTER * len(name)
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" '
               f'text-anchor="middle">{text(series["x_label"])}</text>'
               f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
               f'text-anchor="middle">{text(series["y_label"])}</text></svg>')
    return "".join(out)


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], right: int) -> Iterator[str]:
    """A table as HTML. head: titles; none: no line of titles. right: the first column of those that
    are aligned to the right."""
    yield "<table>" + ("<tr>" + "".join(f"<th>{text(title)}</th>" for title in head) + "</tr>"
                       if head else "")
    for row in rows:
        yield "<tr>" + "".join(f'<td{"" if i < right else CLASS}>{text(cell)}</td>'
                               for i, cell in enumerate(row)) + "</tr>"
    yield "</table>"


def part(series: dict[str, Any]) -> Iterator[str]:
    """A plot and, folded, its numbers, as HTML."""
    yield f"<p>{svg(series)}</p>"
    yield f"<details><summary>{text(series['title'])}: the numbers</summary>"
    columns = [series["x"], *series["lines"].values()]
    yield from table(
        [series["x_label"], *(f"{name}, {series['y_label']}" for name in series["lines"])],
        [["" if cell is None else amount(cell) if number(cell) else cell for cell in row]
         for row in zip(*columns)], 1)
    yield "</details>"
