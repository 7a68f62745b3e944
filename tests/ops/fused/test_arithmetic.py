# SPDX-License-Identifier: BSD-3-Clause
"""Sums, products, quotients, powers, choices and joining against the plain composition."""

import torch

from tests.support.fused_cases import Case, check, every

SEEN = torch.arange(36) % 3 == 0


CASES: dict[str, list[Case]] = {
    "add": [
        Case(((4, 36), (4, 36)), torch.add),
        Case(((4, 36), (4, 36)), torch.add, {"alpha": -1.5}),
        Case(((3, 5, 20), (20,)), torch.add, rows=False),
    ],
    "add_scalar": [
        Case(((4, 36),), torch.add, {"other": 0.3}),
        Case(((2, 3, 20),), torch.add, {"other": -2.0, "alpha": 0.5}),
    ],
    "div": [
        Case(((4, 36), (4, 36)), torch.div, positive=True),
        Case(((3, 5, 20), (5, 1)), torch.div, positive=True, rows=False),
    ],
    "div_scalar": [
        Case(((4, 36),), torch.div, {"other": 0.3}),
        Case(((2, 3, 20),), torch.div, {"other": -8.0}),
    ],
    "masked_fill": [
        Case(((4, 36),), torch.masked_fill, {"mask": SEEN, "value": -1.25}, rows=False),
    ],
    "maximum": [
        Case(((4, 36), (4, 36)), torch.maximum),
        Case(((3, 5, 20), (20,)), torch.maximum, rows=False),
    ],
    "minimum": [
        Case(((4, 36), (4, 36)), torch.minimum),
        Case(((3, 5, 20), (20,)), torch.minimum, rows=False),
    ],
    "mul": [
        Case(((4, 36), (4, 36)), torch.mul),
        Case(((3, 1, 20), (1, 5, 20)), torch.mul, rows=False),
    ],
    "mul_scalar": [
        Case(((4, 36),), torch.mul, {"other": 0.3}),
        Case(((2, 3, 20),), torch.mul, {"other": -8.0}),
    ],
    "pow": [
        Case(((4, 36), (4, 36)), torch.pow, positive=True),
    ],
    "pow_scalar": [
        Case(((4, 36),), torch.pow, {"exponent": 2.0}),
        Case(((4, 36),), torch.pow, {"exponent": -0.5}, positive=True),
    ],
    "rsub_scalar": [
        Case(((4, 36),), torch.rsub, {"other": 0.3}),
        Case(((2, 3, 20),), torch.rsub, {"other": -2.0, "alpha": 0.5}),
    ],
    "sub": [
        Case(((4, 36), (4, 36)), torch.sub),
        Case(((4, 36), (4, 36)), torch.sub, {"alpha": -1.5}),
        Case(((3, 5, 20), (20,)), torch.sub, rows=False),
    ],
    "sub_scalar": [
        Case(((4, 36),), torch.sub, {"other": 0.3}),
        Case(((2, 3, 20),), torch.sub, {"other": -2.0, "alpha": 0.5}),
    ],
    "where": [
        Case(
            ((4, 36), (4, 36)),
            lambda a, b, *, condition: torch.where(condition, a, b),
            {"condition": SEEN},
            rows=False,
        ),
    ],
    "where_scalar": [
        Case(
            ((4, 36),),
            lambda a, *, condition, other: torch.where(condition, a, other),
            {"condition": SEEN, "other": -1.25},
            rows=False,
        ),
    ],
    # tensors of unequal formats that become one
    "cat": [
        Case(((4, 36), (4, 36), (4, 20)), lambda *xs, dim: torch.cat(xs, dim), {"dim": -1}),
        Case(((4, 36), (2, 36)), lambda *xs: torch.cat(xs), rows=False),
        Case(((4, 36),), lambda x: torch.cat([x]), name="one"),
    ],
    "stack": [
        Case(((4, 36), (4, 36), (4, 36)), lambda *xs, dim: torch.stack(xs, dim), {"dim": 1}),
        Case(((4, 20), (4, 20)), lambda *xs: torch.stack(xs), rows=False),
    ],
}


@every(CASES, 12)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)
