"""Tables for terminals and for pages."""

import pytest

from blockscale.report.table import Table, aligned, markdown


def test_markdown():
    table = Table("title", ("name", "size"), [("a", "1"), ("b", "20")])
    assert markdown(table) == "| name | size |\n| --- | --: |\n| a | 1 |\n| b | 20 |"
    assert markdown(Table("", ("a", "b"), [], left=2)) == "| a | b |\n| --- | --- |"


def test_aligned():
    text = aligned(("name", "n", "what"), [("a", "10", "x"), ("longer", "2", "")], " r")
    assert text.split("\n") == ["name     n  what", "a       10  x", "longer   2"]
    assert aligned(("a", "b"), []) == "a  b"


def test_rows_that_do_not_fit():
    with pytest.raises(IndexError):
        aligned(("a", "b"), [("1",)])
