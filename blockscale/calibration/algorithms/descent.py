# SPDX-License-Identifier: BSD-3-Clause
"""Codes and scales that are chosen again and again, each under all the others.

Coordinate descent on the error of a layer's output, tr((T - Q) H (T - Q)^T): given all other
columns, the best value of column j is Q_j + ((T - Q) H)_j / H_jj, which is rounded; given all
codes, the best step of a block has a closed form. So no step of it raises the error, where a format
rounds to nearest; others are left as they are. Sweeps over codes are those of Behdin et al. 2023,
"QuantEase" (arXiv 2309.01885, section 3, algorithm 1); there the scales stay.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import select
from blockscale.calibration.algorithms.columns import Columns
from blockscale.calibration.algorithms.known_scale import nearest_scale
from blockscale.core import reference
from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.block import WHOLE
from blockscale.core.scale import PowerOfTwo

_BATCH = 64  # columns that are rounded in one call
_LEAST = 32  # columns whose errors are handed on together, where blocks are smaller


def descend(
    columns: Columns, target: Tensor, h: Tensor, sweeps: int, *, fit: bool = True
) -> Tensor:
    """Choose codes and scales of all columns again, at most `sweeps` times; all have codes already.

    target: [k, n] float64, what the values should be
    h: [k, k] float64, symmetric, with a diagonal above 0
    fit: scales too, not codes alone
    Returns h @ (target - values) [k, n].
    """
    if not columns.single.rounding.startswith("nearest"):
        sweeps = 0  # what is rounded one way only need not come nearer
    fits = fit and not isinstance(
        columns.single.scale, PowerOfTwo
    )  # whose neighbour is seldom nearer
    coupling = h / -h.diagonal()
    rest = h @ (target - columns.values)
    for _ in range(sweeps):
        before = columns.values.clone()
        for part, blocks in _parts(columns):
            own, near = h[part, part].contiguous(), rest[part].clone()
            errors = torch.zeros_like(near)
            for block in blocks if fits else ():
                _fit(columns, block, part, own, near, errors)
            for first in range(part.start, part.stop, _BATCH):
                some = slice(first, min(first + _BATCH, part.stop))
                here = slice(some.start - part.start, some.stop - part.start)
                base = columns.values[some].double()
                wanted = base + near[here] / h.diagonal()[some, None]
                found = columns.round(some, wanted, base, coupling[some, some].contiguous())
                errors[here] += found.errors
                if some.stop < part.stop:
                    near += own[:, here] @ found.errors
            rest.addmm_(h[:, part], errors)
        if bool((columns.values == before).all()):
            break
    return rest


def _parts(columns: Columns) -> Iterator[tuple[slice, range]]:
    """Neighbouring columns that hold whole blocks, and which blocks of columns those are."""
    size, most = columns.sizes[1], len(columns.chosen)
    count = most if size == WHOLE else max(1, _LEAST // size)
    for first in range(0, most, max(count, 1)):
        blocks = range(first, min(first + count, most))
        last = columns.columns_of(blocks[-1])
        yield slice(columns.columns_of(first).start, last.stop), blocks


def _fit(
    columns: Columns, block: int, part: slice, own: Tensor, near: Tensor, errors: Tensor
) -> None:
    """The step of each block that is best for its codes, where that lowers the error.

    part: of all columns, where own = h, near = h @ (target - values) and errors are given
    """
    stored = columns.columns_of(block)
    here = slice(stored.start - part.start, stored.stop - part.start)
    fmt, old, values = columns.single, columns.qparams_of(block), columns.values[stored].double()
    step = reference.step_of(old, fmt)[:, 0].double()
    v = values  # step times what the codes count
    if old.offset is not None:
        v = v - old.offset.double()[columns.row_block, 0]
    costs = own[here, here]
    of_error = _of_blocks((v * near[here]).sum(0), columns)
    of_v = _of_blocks(torch.mm(costs, v).mul_(v).sum(0), columns)
    wanted = step + step * (of_error / of_v)
    wanted = torch.where((of_v > 0) & (wanted * step > 0), wanted, step).clamp(-FLT_MAX, FLT_MAX)
    new = old._replace(scale=nearest_scale(wanted.float()[:, None], old.outer, fmt))
    less = 1 - reference.step_of(new, fmt)[:, 0].double() / step  # of v is what values lose by it
    change = less * (2 * of_error + less * of_v)
    columns.put(block, select((change < 0)[:, None], new, old))
    moved = values - columns.revalue(stored)
    errors[here] += moved
    near.addmm_(own[:, here], moved)


def _of_blocks(rows: Tensor, columns: Columns) -> Tensor:
    """A number for each row [n] -> its sum over the rows of each block."""
    if columns.sizes[0] == 1:
        return rows
    count = 1 if columns.sizes[0] == WHOLE else -(-len(rows) // columns.sizes[0])
    return rows.new_zeros(count).index_add_(0, columns.row_block, rows)
