# SPDX-License-Identifier: BSD-3-Clause
"""Tables for terminals and for pages."""

import pytest

from blockscale.reporting.table import Table, aligned, family, markdown, shape, size


def test_markdown():
    table = Table("title", ("name", "size"), [("a", "1"), ("b", "20")])
    assert markdown(table) == "| name | size |\n| --- | --: |\n| a | 1 |\n| b | 20 |"
    assert markdown(Table("", ("a", "b"), [], left_columns=2)) == "| a | b |\n| --- | --- |"


def test_aligned():
    text = aligned(("name", "n", "what"), [("a", "10", "x"), ("longer", "2", "")], " r")
    assert text.split("\n") == ["name     n  what", "a       10  x", "longer   2"]
    assert aligned(("a", "b"), []) == "a  b"


def test_rows_that_do_not_fit():
    with pytest.raises(IndexError):
        aligned(("a", "b"), [("1",)])


def test_cells_from_files_are_printable():
    text = aligned(("name",), [("\x1b[2J\u202e\n",), ("a" * 10**6,)])
    lines = text.split("\n")
    assert len(lines) == 3 and lines[1] == r"\x1b[2J\u202e\n" and len(lines[2]) < 1100
    assert all(line.isprintable() for line in lines)


# Sizes, shapes and names as people read them.


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (90_900_000, "90.9 MB"),
        (2**34, "17.2 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes(nbytes, text):
    assert size(nbytes) == text


def test_shapes():
    assert shape((384, 1536)) == "384 x 1536"
    assert shape((7,)) == "7"
    assert shape(()) == "scalar"


def test_families():
    assert family("layer.11.0.weight") == family("layer.2.34.weight") == "layer.*.*.weight"
    assert family("head.weight") == "head.weight"
