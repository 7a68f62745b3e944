# SPDX-License-Identifier: BSD-3-Clause
"""Syntax trees of source files, each made once: a dozen tests look at all of them."""

import ast
import gc
from functools import cache


@cache
def tree(source: str) -> ast.Module:
    """Of a text, which no test changes."""
    was_enabled = gc.isenabled()
    gc.disable()  # nothing of it is garbage, and looking takes twice as long as parsing
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All of the tree, in the order of ast.walk, which takes as long as parsing."""
    return tuple(ast.walk(tree(source)))
