# SPDX-License-Identifier: BSD-3-Clause
"""What each op is on integers: one family a file, found by itself.

A file defines `RULES`: {name of a fused op: rule(builder, task) -> Value}. A rule adds the integer
ops that stand for the task, and raises NotIntegerError, which names it, where there are none.
"""

from collections.abc import Callable
from functools import cache

from blockscale.core import import_all
from blockscale.graph.lowering.integers.builder import Builder, Task, Value

Rule = Callable[[Builder, Task], Value]


@cache
def rules() -> dict[str, Rule]:
    """{name of a fused op, as blockscale.ops.fused has it: its rule}."""
    by_name: dict[str, Rule] = {}
    for file in import_all(__name__, __path__):
        by_name |= file.RULES
    return by_name
