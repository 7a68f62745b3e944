# SPDX-License-Identifier: BSD-3-Clause
"""Plots as SVG, by hand: the same bytes from the same run, on every machine."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

COLORS = ("#2f6db5", "#d9822b", "#3c8f5a", "#b5402f", "#7a5ab5", "#4fa3a3", "#8a6d3b", "#c2588f",
          "#5f6b7a")  # fmt: skip
_FONT = 'font-family="DejaVu Sans, Verdana, sans-serif"'


def _document(width: float, height: float, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
    back = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return head + f'{_FONT} font-size="12">\n' + "\n".join([back, *body]) + "\n</svg>\n"


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="#333333"{more}>{escape(text)}</text>'


def _line(points: Sequence[tuple[float, float]], color: str, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}"{more}/>'


def _legend(x: float, y: float, names: Sequence[str]) -> list[str]:
    """A square of its color and the name, for each curve or bar."""
    shapes = []
    for i, name in enumerate(names):
        top = y + 18 * i
        color = COLORS[i % len(COLORS)]
        shapes.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="12" height="12" fill="{color}"/>')
        shapes.append(_text(x + 18, top + 10, name))
    return shapes


def _width(text: str) -> float:
    """At least the width of a text of 12 px, whose font readers may replace: 0.62 em a letter."""
    return 7.5 * len(text)


def _margin(least: float, beside: float, names: Iterable[str]) -> float:
    """Room for the longest name and what stands beside it, in px."""
    return max([least, *(beside + _width(name) for name in names)])


def bars(title: str, rows: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    """An SVG of horizontal bars from 0, with a line at 1.

    rows: {a row's label: {a bar's name: its length}}
    names: the bars of a row in order, which the legend lists; a row may lack some
    """
    thick, left, wide = 9.0, _margin(130.0, 12, rows), 430.0
    step = thick * len(names) + 8
    most = max([1.0, *(value for row in rows.values() for value in row.values())])
    high = 44 + step * len(rows)
    body = [_text(left, 22, title, more=' font-size="14"')]
    for i, (label, row) in enumerate(rows.items()):
        top = 36 + step * i
        body.append(_text(left - 8, top + step / 2, label, "end"))
        for j, name in enumerate(names):
            if name in row:
                size = f'width="{wide * row[name] / most:.1f}" height="{thick - 1:g}"'
                place = f'x="{left:g}" y="{top + thick * j:.1f}"'
                body.append(f'<rect {place} {size} fill="{COLORS[j]}"/>')
    one = left + wide / most
    body.append(_line([(one, 32), (one, high - 8)], "#333333", ' stroke-dasharray="4 3"'))
    body.append(_text(one, high + 6, "1.0", "middle"))
    body += _legend(left + wide + 24, 36, names)
    right = max(_margin(160.0, 46, names), _width(title) * 14 / 12 - wide)
    return _document(left + wide + right, high + 16, body)


def curves(title: str, series: Mapping[str, Mapping[int, float]], low: float = 0.01) -> str:
    """An SVG of curves over numbers of rows, both axes logarithmic, with a line at 1.

    series: {a curve's name: {number of rows: value}}; values below `low` are drawn on it
    """
    left, top, wide, high = 60.0, 36.0, 460.0, 340.0
    places = sorted({m for row in series.values() for m in row})
    values = [value for row in series.values() for value in row.values()]
    decades = max(1.0, log10(max([1.0, *values]) / low))

    def x(m: int) -> float:
        return left + wide * log10(m / places[0]) / max(log10(places[-1] / places[0]), 1e-9)

    def y(value: float) -> float:
        return top + high * (1 - log10(max(value, low) / low) / decades)

    body = [_text(left, 22, title, more=' font-size="14"')]
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0):
        if low <= tick <= low * 10**decades * 1.001:
            color = "#333333" if tick == 1.0 else "#dddddd"
            body.append(_line([(left, y(tick)), (left + wide, y(tick))], color))
            body.append(_text(left - 8, y(tick) + 4, f"{tick:g}", "end"))
    body += [_text(x(m), top + high + 18, str(m), "middle") for m in places]
    body.append(_text(left + wide / 2, top + high + 36, "rows m", "middle"))
    for i, row in enumerate(series.values()):
        points = [(x(m), y(value)) for m, value in sorted(row.items())]
        body.append(_line(points, COLORS[i % len(COLORS)], ' stroke-width="2"'))
    body += _legend(left + wide + 20, top, list(series))
    right = max(_margin(250.0, 42, series), _width(title) * 14 / 12 - wide)
    return _document(left + wide + right, top + high + 46, body)


def scatter(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], below: str, low: float = 1e-3
) -> str:
    """An SVG of dots, x linear and y logarithmic, a color and shape for each series.

    series: {a name: its (x, y)}; below: what x is; what is less than `low` is drawn on it
    """
    left, top, wide, high = 60.0, 36.0, 520.0, 380.0
    points = [point for each in series.values() for point in each]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    decades = max(1.0, log10(max([10 * low, *(y for _, y in points)]) / low))

    def place(x: float, y: float) -> tuple[float, float]:
        across = 10 + (wide - 20) * (x - first) / max(last - first, 1e-9)
        return left + across, top + high * (1 - log10(max(y, low) / low) / decades)

    body = [_text(left, 22, title, more=' font-size="14"')]
    for tick in (n * 10**d for d in range(-6, 6) for n in (1, 2, 5)):
        if low * 0.999 <= tick <= low * 10**decades * 1.001:
            y = place(first, tick)[1]
            body.append(_line([(left, y), (left + wide, y)], "#dddddd"))
            body.append(_text(left - 8, y + 4, f"{tick:g}", "end"))
    for bits in range(ceil(first), floor(last) + 1):
        body += [_text(place(bits, low)[0], top + high + 18, str(bits), "middle")]
    body.append(_text(left + wide / 2, top + high + 36, below, "middle"))
    step = min(18.0, high / len(series))
    for i, (name, each) in enumerate(series.items()):
        mark = (COLORS[i % len(COLORS)], i // len(COLORS))
        body += [_dot(*place(x, y), *mark) for x, y in each]
        body.append(_dot(left + wide + 26, top + step * i + 6, *mark))
        body.append(_text(left + wide + 38, top + step * i + 10, name))
    right = max(_margin(280.0, 42, series), _width(title) * 14 / 12 - wide)
    return _document(left + wide + right, top + high + 46, body)


def _dot(x: float, y: float, color: str, shape: int) -> str:
    """A circle, a square or a triangle around (x, y)."""
    if shape % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}" fill-opacity="0.8"/>'
    corners = ((-4, -4), (4, -4), (4, 4), (-4, 4)) if shape % 3 == 1 else ((0, -5), (5, 4), (-5, 4))
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{path}" fill="{color}" fill-opacity="0.8"/>'
