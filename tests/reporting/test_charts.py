# SPDX-License-Identifier: BSD-3-Clause
"""Plots are SVG: bars and points lie where the figures say."""

import re
import xml.etree.ElementTree as ET

import pytest

from blockscale.reporting import charts


def test_charts_are_well_formed():
    bars = charts.bars("a < b", {"x": {"q": 0.5, "d": 1.5}, "y": {"q": 0.25}}, ("q", "d"))
    widths = re.findall(r'width="([0-9.]+)" height="8"', bars)
    assert [float(w) for w in widths] == pytest.approx([430 / 3, 430, 430 / 6], abs=0.1)
    curves = charts.curves("c", {"x": {1: 0.1, 512: 0.01}, "y": {1: 20.0}})
    for text in (bars, curves):
        assert ET.fromstring(text).tag.endswith("svg")
    assert charts.curves("c", {"x": {1: 0.001}})  # below the axis: drawn on it


def points(text):
    """The points of each curve, without the lines of the grid."""
    curves = re.findall(r'points="([^"]+)" fill="none" stroke="[^"]+" stroke-width="2"', text)
    return [[tuple(map(float, point.split(","))) for point in each.split()] for each in curves]


def test_axes_are_logarithmic():
    [(a, b, c)] = points(charts.curves("c", {"x": {1: 0.1, 4: 1.0, 16: 10.0}}))
    assert (a[0], b[0], c[0]) == pytest.approx((60, 290, 520))  # equal steps, over the whole width
    assert a[1] - b[1] == pytest.approx(b[1] - c[1], abs=0.1)
    [(low, _)] = points(charts.curves("c", {"x": {1: 0.001, 2: 0.5}}))
    [(floor, _)] = points(charts.curves("c", {"x": {1: 0.01, 2: 0.5}}))
    assert low == floor


def test_names_are_escaped_and_in_the_legend():
    texts = [each.text for each in ET.fromstring(charts.bars("a<b", {"r&": {"q": 1.0}}, ("q",)))]
    assert {"a<b", "r&", "q"} <= set(texts)
    texts = [each.text for each in ET.fromstring(charts.curves("t", {"m > n": {1: 1.0}}))]
    assert {"t", "m > n"} <= set(texts)


def dots(text):
    return [tuple(map(float, d)) for d in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)]


def test_scattered_dots_lie_where_the_figures_say():
    text = charts.scatter("t", {"a": [(4, 0.01), (8, 0.1), (6, 1.0)]}, "bits", low=0.01)
    a, b, c, _legend = dots(text)
    assert (a[0], c[0], b[0]) == pytest.approx((70, 320, 570))
    assert a[1] - b[1] == pytest.approx(b[1] - c[1], abs=0.11)
    assert {"4", "5", "8", "0.05", "bits", "a"} <= {each.text for each in ET.fromstring(text)}
    [low, negative, *_] = dots(charts.scatter("t", {"a": [(4, 1e-3), (4, -1.0)]}, "bits"))
    assert low == negative


def test_more_series_than_colors_have_other_shapes():
    text = charts.scatter("t", {str(i): [(i, 1.0)] for i in range(20)}, "bits")
    assert (text.count("<circle"), text.count("<polygon")) == (18, 22)
    ET.fromstring(text)


@pytest.mark.slow
def test_no_text_is_cut():
    """Extents by matplotlib's DejaVu Sans, which is the font that the SVG names first."""
    fonts = pytest.importorskip("matplotlib.textpath", reason="NO matplotlib: no font to measure")
    long = "e2m1:block4x4x4:(e4m3:block2x2:fp32):stochastic of bitsandbytes"
    title = "A title that is far longer than the plot that stands below it: " + long
    row = {long: 0.5, "d": 1.5}
    for svg in (
        charts.bars(title, {long: row, "y": {"d": 0.25}}, (long, "d")),
        charts.curves(title, {long: {1: 0.1, 512: 0.01}, "y": {1: 20.0}}),
        charts.scatter(title, {long: [(4, 0.01), (8, 0.1)]}, "bits per weight"),
    ):
        root = ET.fromstring(svg)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        texts = [each for each in root.iter() if each.tag.endswith("text")]
        assert sum(each.text in (long, title) for each in texts) >= 2
        for each in texts:
            size = float(each.attrib.get("font-size", 12))
            extent = fonts.TextPath((0, 0), each.text, size=size).get_extents().x1
            shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[each.attrib["text-anchor"]]
            left = float(each.attrib["x"]) - shift * extent
            assert left >= 0 and left + extent <= width, each.text
            assert 0 < float(each.attrib["y"]) <= height
