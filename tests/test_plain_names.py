# SPDX-License-Identifier: BSD-3-Clause
"""Names are nouns and verbs: those that are bare participles may only become fewer."""

import ast

import pytest

from tests.support.plain_names import (
    Name,
    definitions,
    directions,
    every_dialect_name,
    figures,
    is_dialect,
)

# What is left from before the rule. A figure here may only go down: new code has none.
BOUNDS = {"visible": 131, "local": 44}


@pytest.mark.parametrize("figure", BOUNDS)
def test_bare_participles_become_fewer(figure: str):
    count = figures()[figure]
    assert count <= BOUNDS[figure], (
        f"{count} {figure} names are bare participles, {BOUNDS[figure]} were: name the new one by a"
        " noun or a verb (`python -m tests.support.plain_names` lists them)"
    )


def test_what_counts():
    assert [
        word for word in ("found", "gathered", "rare", "packed", "result") if is_dialect(word)
    ] == [
        "found",
        "gathered",
        "rare",
    ]
    source = """
class Told:
    made: int
    def __init__(self, given): self.held = given
    @property
    def left(self):
        kept = 1
        def inner(): lost = 2
        return kept
"""
    names = definitions(ast.parse(source), "a.py")
    assert {(n.text, n.kind) for n in names if is_dialect(n.word)} == {
        ("Told", "class"),
        ("made", "attribute"),
        ("given", "parameter"),
        ("held", "attribute"),
        ("left", "property"),
        ("kept", "local"),
        ("lost", "local"),
    }


def test_a_direction_has_its_opposite_beside_it():
    source = """
def product(left, right): pass
def rest(n):
    left = n - 1
    return left
class Factors:
    left: int
    right: int
    def some(self):
        left = 1
"""
    assert directions(ast.parse(source)) == {2, 7}


def test_a_name_has_a_place():
    assert all(isinstance(name, Name) and name.line > 0 for name in every_dialect_name())
