# SPDX-License-Identifier: BSD-3-Clause
"""Ops that run on the reference whatever `bs.use` says: `blockscale::reference_linear` of `linear`.

A graph that calls them keeps the reference's bits, also after copies and torch.export.
"""

from typing import Any

import torch

from blockscale.graph.lowering.way import by_overload
from blockscale.kernels.registry import Choice, as_chosen
from blockscale.ops.op import LIBRARY, Op

PREFIX = "reference_"
REFERENCE = Choice("reference", must=False)
_pinned: dict[Any, Any] = {}  # torch op -> the one that keeps to the reference


def pinned(overload: Any) -> Any:
    """The torch op that computes what `overload`, one of ours, does on the reference."""
    if overload not in _pinned:
        pin_all()
    return _pinned[overload]


def pin_all() -> None:
    """Make them for all ops there are. At import: a saved program needs them when it is loaded."""
    for op in by_overload().values():
        if op.overload not in _pinned:
            _pinned[op.overload] = _pin(op)


def _pin(op: Op) -> Any:
    name = PREFIX + op.name
    schema = str(op.overload._schema).removeprefix("blockscale::")

    def run(*flat: Any) -> Any:
        with as_chosen(REFERENCE):
            return op.run(*op.signature.bind(*flat))

    def shape(*flat: Any, **named: Any) -> Any:
        return op.overload(*flat, **named)

    LIBRARY.define(PREFIX + schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"blockscale::{name}", shape, lib=LIBRARY)
    return getattr(torch.ops.blockscale, name).default


pin_all()
