# SPDX-License-Identifier: BSD-3-Clause
"""torch.vmap over our ops: all slices at once where that gives each slice its own bits, else one
after the other.

Slices may go at once where no block of an input's format reaches from one slice into another. A
scale of a whole tensor, the index of an element in stochastic rounding and a table that a tensor
chooses do: these see one slice at a time, as a loop over calls would.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blockscale.core.block import Block, read_block
from blockscale.core.cuts import blocks_of
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import QParams

# Blocks over the flattened tensor, told as blocks within its rows where they are the same.


def within_rows(fmt: Format, shape: Sequence[int]) -> Format:
    """The same, its flat blocks as groups or tiles where those hold the same elements in one order.

    So they do where a row holds whole blocks, or a block whole rows of a matrix.
    """
    flat, last = fmt.block.flat, shape[-1] if shape else 1
    alone = [each.name for each in blocks_of(fmt)][1:] in ([], ["tensor"])
    if not flat or fmt.block.strided or not last or not alone:
        return fmt
    if len(shape) == 1 or last % flat == 0:
        return replace(fmt, block=read_block(f"group{flat}"))
    if len(shape) == 2 and flat % last == 0:
        return replace(fmt, block=read_block(f"tile{flat // last}x{last}"))
    return fmt


def in_blocks_of(qparams: QParams, fmt: Format, shape: Sequence[int]) -> QParams:
    """The parts of `within_rows(fmt, shape)` -> those of `fmt`, or the other way round: the same
    numbers in the same order."""
    shapes = {part: own for part, (_, own) in fmt.stored(shape).items()}
    parts = {part: getattr(qparams, part).reshape(own) for part, own in shapes.items()}
    return QParams(**parts)


Rule = Callable[..., tuple[Any, Any]]
_OF_ROWS = ("linear", "fake_quantize", "straight_through")  # whose first tensors are [..., k]
_OF_IMAGES = ("conv", "conv_transpose")  # whose x is [batch, ...]
_PARTS = ("scale", "zero_point", "outer", "seed")


def batching_rule(name: str, names: Sequence[str], overload: Callable[[], Any]) -> Rule:
    """What torch.library.register_vmap takes for the op `name`.

    names: of the torch op's arguments
    overload: gives the torch op
    """

    def rule(info: Any, in_dims: Any, *flat: Any) -> tuple[Any, Any]:
        op = overload()
        first = 2 if name == "straight_through" else 1  # tensors that may be batched at once
        batches = [_first(arg, dim) for arg, dim in zip(flat, in_dims, strict=True)]
        batched = [i for i, dim in enumerate(in_dims) if _is_batched(dim)]
        alone = batched[-1] < first
        if alone and name in _OF_ROWS and _rows_apart(names, flat, in_dims):
            size = info.batch_size
            wide = [_wide(*each, size) for each in zip(batches[:first], in_dims, strict=False)]
            return op(*wide, *_of_rank(names, flat)[first:]), 0
        if alone and name in _OF_IMAGES and _images_apart(names, flat):
            y = op(batches[0].flatten(0, 1), *flat[1:])
            return y.unflatten(0, batches[0].shape[:2]), 0
        if name == "embedding" and batched == [names.index("indices")]:
            return op(*batches), 0
        return _one_by_one(op, name, info.batch_size, batches, in_dims)

    return rule


def _is_batched(dim: Any) -> bool:
    return any(map(_is_batched, dim)) if isinstance(dim, list | tuple) else dim is not None


def _first(arg: Any, dim: Any) -> Any:
    """A batched tensor, or those of a list, with the batch first."""
    if isinstance(arg, list | tuple) and isinstance(dim, list | tuple):
        return [_first(each, d) for each, d in zip(arg, dim, strict=True)]
    return arg if dim is None else arg.movedim(dim, 0)


def _wide(arg: Tensor, dim: int | None, size: int) -> Tensor:
    return arg.expand(size, *arg.shape) if dim is None else arg


def _one_by_one(
    op: Any, name: str, size: int, batches: list[Any], in_dims: Sequence[Any]
) -> tuple[Any, Any]:
    """The op on each slice, what it gives stacked."""
    if not size:
        raise ValueError(
            f"blockscale::{name}: torch.vmap over 0 slices cannot know the shape of the result"
        )
    results = [
        op(*(_slice(a, d, i) for a, d in zip(batches, in_dims, strict=True))) for i in range(size)
    ]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    columns = [torch.stack(each) for each in zip(*results, strict=True)]
    return columns, [0] * len(columns)


def _slice(arg: Any, dim: Any, index: int) -> Any:
    if isinstance(arg, list | tuple) and isinstance(dim, list | tuple):
        return [_slice(each, d, index) for each, d in zip(arg, dim, strict=True)]
    return arg if dim is None else arg[index]


def _input(names: Sequence[str], flat: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The spelling of the format of an op's input, and what is given of it."""
    prefix = "input_" if "input_fmt" in names else ""
    by_name = dict(zip(names, flat, strict=False))
    return by_name[f"{prefix}fmt"], {
        part: by_name.get(f"{prefix}{part}") for part in (*_PARTS, "more")
    }


def _rows_apart(names: Sequence[str], flat: Sequence[Any], in_dims: Sequence[Any]) -> bool:
    """Whether a batch of inputs has the blocks that its slices have by themselves."""
    spelling, inputs = _input(names, flat)
    if not spelling:
        return True
    fmt, rank = parse(spelling), flat[0].ndim - (in_dims[0] is not None)
    if _reaches_far(fmt, inputs):
        return False
    if inputs["scale"] is not None:
        return fmt.block.name == "tensor" or fmt.block.name == "channel-1"
    return _sizes(fmt.block, rank + 1) == (1, *_sizes(fmt.block, rank))


def _images_apart(names: Sequence[str], flat: Sequence[Any]) -> bool:
    """The same of images [slices, batch, ...], whose first two dimensions become one."""
    spelling, inputs = _input(names, flat)
    if not spelling:
        return True
    fmt = parse(spelling)
    if _reaches_far(fmt, inputs):
        return False
    return inputs["scale"] is not None or _sizes(fmt.block, flat[0].ndim - 1)[0] == 1


def _reaches_far(fmt: Format, data: dict[str, Any]) -> bool:
    """Whether something beside the blocks depends on the whole tensor, or they cross its rows."""
    parts = {*fmt.parts} - {"scale", "zero_point", "offset"}
    return bool(parts or data["more"] or data["seed"] is not None or fmt.block.flat)


def _sizes(block: Block, rank: int) -> tuple[int, ...]:
    try:
        return tuple(block.sizes_for(rank))
    except ValueError:  # the block needs more dimensions
        return (0,) * rank


def _of_rank(names: Sequence[str], flat: Sequence[Any]) -> list[Any]:
    """The arguments, a given scale of the input with one dimension more in front."""
    prefix = "input_" if "input_fmt" in names else ""
    own = {f"{prefix}{part}" for part in _PARTS[:2]}
    return [
        arg.unsqueeze(0) if name in own and isinstance(arg, Tensor) and arg.ndim else arg
        for name, arg in zip(names, flat, strict=False)
    ]
