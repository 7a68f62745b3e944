# SPDX-License-Identifier: BSD-3-Clause
"""Weights of several layers in one tensor: fused projections, and stacks such as experts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from blockscale.core import reference, rules
from blockscale.core.block import WHOLE, Block, block_named, read_block
from blockscale.core.format import Format
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import Ranges
from blockscale.core.scales import Offset, TwoLevel

# Layers that servers join to one, and that therefore share their outer scale.
#
# vLLM, SGLang and TensorRT-LLM compute query, key and value as one product, and gate and up, and
# the
# w1 and w3 of an expert. The joined weight keeps one outer scale, the largest, where its format has
# two levels (nvfp4: docs/numerics.md, 3.5); codes that were chosen under a smaller one then mean
# other numbers. So such layers are quantized as the rows of one weight: each block's scale by
# itself,
# the outer scale from the largest numerator of them all. The bits are those of the joined weight.
#
# Which layers those are is said here, once, for models in memory, for directories, for weights that
# are quantized as they are read, and for those who look at files (`groups`).

# Last names of layers of one parent that servers join: vLLM 0.32 (packed_modules_mapping and
# stacked_params_mapping of model_executor/models/), SGLang's copies of them
KNOWN = (
    ("q_proj", "k_proj", "v_proj", "b_proj", "gate_proj"),  # of attention, with what stands beside
    ("query", "key", "value"),
    ("to_q", "to_k", "to_v"),
    ("query_net", "key_net", "value_net"),
    ("wq", "wk", "wv"),
    ("wk", "weights_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
Fused: TypeAlias = bool | tuple[str, ...]  # of a recipe: known ones or none; or patterns, too


def read_fused(fused: bool | Sequence[str]) -> Fused:
    """What a recipe's `fused` says. Raises TypeError and ValueError for what it cannot be."""
    if isinstance(fused, bool):
        return fused
    if isinstance(fused, str):
        raise TypeError(f"fused must be a list of patterns: write [{fused!r}]")
    if not isinstance(fused, list | tuple) or not all(isinstance(p, str) for p in fused):
        raise TypeError(
            "fused must be True, False or a list of patterns, such as ['*.attn.[qkv]'], got "
            f"{fused!r}"
        )
    for pattern in fused:
        rules.check(pattern)
        if rules.names_op(pattern):
            raise ValueError(
                f"fused: {pattern!r} names ops, and only layers can be fused: name layers"
            )
    return tuple(fused) or True


def groups(names: Iterable[str], fused: Fused = True) -> list[tuple[str, ...]]:
    """The layers among `names` that servers join, each group in the order of `names`.

    names: of layers, as `a.b.q_proj`, without `.weight`
    """
    if fused is False:
        return []
    children: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        children.setdefault(name.rpartition(".")[0], []).append(name)
    results = []
    for siblings in children.values():
        rest = siblings
        for pattern in () if fused is True else fused:
            results.append(tuple(name for name in rest if rules.matches(pattern, name)))
            rest = [name for name in rest if name not in results[-1]]
        for group in KNOWN:
            some = tuple(name for name in rest if name.rpartition(".")[2] in group)
            if len(some) > 1:
                results.append(some)
                rest = [name for name in rest if name not in some]
    return [group for group in results if len(group) > 1]


def shares(fmt: Format | None, shape: Sequence[int], parts: int = 1) -> str:
    """Why a weight has no outer scale that others could share; empty if it has.

    shape: [..., n, k] as it is stored, of `parts` matrices one below another (core.joined_weights)
    """
    if fmt is None or not isinstance(fmt.scale, TwoLevel):
        return "it has no outer scale"
    return _shares(fmt, tuple(shape), parts)


@lru_cache(maxsize=1024)  # the weights of a model have few shapes
def _shares(fmt: Format, shape: tuple[int, ...], parts: int) -> str:
    assert isinstance(fmt.scale, TwoLevel)
    if fmt.element.learned:
        return "its table is learned from its own values"
    if len(shape) < 2 or fmt.block.flat or fmt.scale.inner.block.flat:
        return "its blocks are not those of a matrix"
    high = fmt.block.sizes_for(len(shape))[-2]
    rows = fmt.stored(shape)["outer"][1][-2]
    if rows != parts or high < 1 or shape[-2] // parts % high:
        return "its outer scale is not one for all rows"
    return ""


def partners(
    names: Iterable[str], kinds: Mapping[str, object], fused: Fused
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """{name: all that share its outer scale} and {name: what does not, and why, in words}.

    kinds: {name: what has to be the same for weights to be joined} of those that have an outer
        scale to share: their format, the numbers of their inputs
    """
    sharing: dict[str, tuple[str, ...]] = {}
    alone: dict[str, str] = {}
    for group in groups(names, fused):
        alike: dict[object, list[str]] = {}
        for name in group:
            if name in kinds:
                alike.setdefault(kinds[name], []).append(name)
        for some in alike.values():
            others = [name for name in group if name not in some]
            for name in some:
                if len(some) > 1:
                    sharing[name] = tuple(some)
                if others:
                    alone[name] = lone_scale_note(others)
    return sharing, alone


def top_of(ranges: Ranges, fmt: Format) -> Tensor:
    """The ranges of a weight's blocks -> its largest numerator, [..., 1, outer scales in a row].

    That of weights which share an outer scale is the largest of them.
    """
    return reference.tops(ranges, fmt).amax(-2, keepdim=True)


def outer_of(top: Tensor, fmt: Format, shape: Sequence[int]) -> Tensor:
    """The largest numerator of all that share it -> the outer scale of a weight of `shape`."""
    return reference.outer_of(top, fmt).expand(fmt.stored(shape)["outer"][1]).contiguous()


def standing_rows(top: Tensor, fmt: Format, columns: int) -> Tensor:
    """Rows [r, columns] float32 that stand for weights which share an outer scale.

    Below a weight, they let it choose the outer scale of all, whoever chooses it by the largest
    numerator. top: that of all, [1, outer scales in a row]; r: a block's rows
    """
    assert isinstance(fmt.scale, TwoLevel)
    shape = fmt.block.sizes_for(2)[0], columns
    scales = fmt.block.scale_shape(shape)
    each = fmt.scale.inner.block.expand(top, scales).expand(scales)
    rows = fmt.block.expand(each, shape).expand(shape).clone()
    if fmt.offset is not None:  # a range need not hold 0, and a block of one number has none
        wide = fmt.block.sizes_for(2)[1] or columns
        rows[:, torch.arange(columns) % wide != 0] = 0.0
    return rows


def lone_scale_note(others: Sequence[str]) -> str:
    """In a ledger, of a layer that does not share its outer scale with all that servers join."""
    last = ", ".join(name.rpartition(".")[2] for name in others)
    return f"outer scale not shared with {last}: not quantized in the same format"


def disagreement_text(outers: Mapping[str, Tensor | None]) -> str:
    """Why layers of one parent cannot be written for servers that join them."""
    parent = next(iter(outers)).rpartition(".")[0]
    last = ", ".join(name.rpartition(".")[2] for name in outers)
    numbers = ", ".join("not chosen yet" if o is None else _number(o) for o in outers.values())
    return (
        f"{last} of {parent or 'the model'} have the outer scales {numbers}, and servers that "
        "join these layers (vLLM, SGLang) keep only one of them: the codes of the other "
        "layers would get wrong values. Quantize the float model again with a recipe that "
        "lets them share it, as recipes do unless they say fused=False"
    )


def _number(outer: Tensor) -> str:
    return f"{float(outer.reshape(-1)[0]):.4g}" + " …" * (outer.numel() > 1)


def shared_scale_note(name: str, sharing: Sequence[str]) -> str:
    """In a ledger, of a layer that shares its outer scale."""
    last = ", ".join(other.rpartition(".")[2] for other in sharing if other != name)
    return f"outer scale shared with {last}" if last else "outer scale shared by its parts"


# Stacks of matrices, such as experts [E, n, k]: the format in which each is as if it were alone.
#
# A format's numbers that belong to a whole tensor (`tensor`, the outer scale of `nvfp4`) would be
# one
# for all matrices of a stack. `of_stack` turns a matrix's format into the stack's, so that matrix e
# of the quantized stack has the bits of the matrix quantized by itself; `of_matrix` turns it back:
#
#     int8:tensor:fp32          int8:block*x*:fp32
#     int8:channel0:fp32        int8:token:fp32, one scale for each row of each matrix
#     e2m1:group16:e4m3         e2m1:group16:(e4m3:block*x*:fp32)
#     e2m1:group32:e8m0/floor   the same
#
# A matrix may be made of `parts` matrices of as many rows each, one below another, as the gate and
# the up projection of an expert are: then each of these has its own numbers,
# `int8:block512x*:fp32`.

Change = Callable[[Block, Sequence[int]], Block]
Shape = Callable[[Block, tuple[int, ...]], tuple[int, ...]]


def of_stack(fmt: Format, shape: Sequence[int], parts: int = 1) -> Format:
    """The format of a matrix -> that of a stack [..., n, k] of such matrices, or of several parts.

    shape: of the stack, as it is stored (blockscale.core.pack)
    parts: of how many matrices [n / parts, k], one below another, each matrix consists

    Under stochastic rounding the draw depends on the place in the stack; everything else is equal.
    Raises ValueError where the stack cannot have such a format: a learned codebook, which is one
    for all; rows that do not divide into parts; blocks that would reach into the next matrix.
    """
    if len(shape) < 2:
        raise ValueError(
            f"a stack of matrices has at least 2 dimensions, found shape {tuple(shape)}"
        )
    if len(shape) == 2 and parts == 1:
        return fmt
    if fmt.element.learned:
        raise ValueError(
            f"{fmt}: {fmt.element.name} is one table for a tensor, and each of the stacked "
            f"matrices needs its own: use an element with a fixed table, such as 'nf4'"
        )
    if parts < 1 or shape[-2] % parts:
        raise ValueError(f"{shape[-2]} rows cannot be divided into {parts} equal parts")
    return _change_blocks(
        fmt, shape, lambda block, of: _stacked(block, of, parts, fmt), _of_matrices
    )


def of_matrix(fmt: Format, shape: Sequence[int]) -> Format:
    """The format of a stack -> that of one of its matrices [n, k], by its usual name."""
    return _change_blocks(fmt, shape, _alone, Block.scale_shape)


def _change_blocks(
    fmt: Format, shape: Sequence[int], change: Change, shape_of_scales: Shape
) -> Format:
    """The format with every block of it changed; the blocks of scales are over their own shape.

    shape_of_scales: gives the shape of the scales that a block has in a tensor of a shape
    """
    shape = tuple(shape)
    scales = shape_of_scales(fmt.block, shape)
    scale, offset = fmt.scale, fmt.offset
    if isinstance(scale, TwoLevel):
        scale = replace(scale, inner=_change_blocks(scale.inner, scales, change, shape_of_scales))
    if offset is not None:
        own = offset.block
        kind = offset.type
        if isinstance(kind, Format):
            kind = _change_blocks(
                kind, shape_of_scales(own or fmt.block, shape), change, shape_of_scales
            )
        offset = Offset(kind, None if own is None else change(own, shape))
    return replace(fmt, block=change(fmt.block, shape), scale=scale, offset=offset)


def _of_matrices(block: Block, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales that a block of a matrix has in a stack of them."""
    return (*shape[:-2], *block.scale_shape(shape[-2:]))


def _stacked(block: Block, shape: Sequence[int], parts: int, fmt: Format) -> Block:
    """A block of a matrix [n, k] -> the same of a stack [..., n, k] of parts."""
    rows, columns = shape[-2] // parts or shape[-2], shape[-1]
    if block.flat:
        if block.strided or rows * columns % block.flat:
            raise ValueError(
                f"{fmt}: blocks of {block} would reach from one of the stacked matrices "
                f"[{rows}, {columns}] into the next: use 'group{block.flat}'"
            )
        return block
    high, wide = block.sizes_for(2)
    if parts > 1 and high > 1 and rows % high:
        raise ValueError(
            f"{fmt}: {rows} rows of a part of the matrix cannot be divided into blocks of "
            f"{high} rows"
        )
    if high == WHOLE and parts > 1:
        high = rows
    return block_named((high, wide))


def _alone(block: Block, shape: Sequence[int]) -> Block:
    """A block of a stack -> the same of one matrix [n, k], by the name that matrices use."""
    if block.flat:
        return block
    high, wide = block.sizes_for(len(shape))[-2:]
    whole_rows, whole_columns = (
        size in (WHOLE, n) for size, n in zip((high, wide), shape[-2:], strict=True)
    )
    if (whole_rows or shape[-2] == 1) and whole_columns:
        return read_block("tensor")
    return read_block("channel0") if high == 1 and wide == WHOLE else block_named((high, wide))


class Member(NamedTuple):
    """A quantized weight, as those are told that it may share an outer scale with.

    shape: as it is stored; parts: matrices, one below another, that are joined in it already
    """

    format: Format
    shape: tuple[int, ...]
    profile: Profile | None = None
    parts: int = 1


def sharing(
    names: Iterable[str], weights: Mapping[str, Member], fused: Fused
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """{name: all that share its outer scale} and {name: what does not, and why, in words}.

    names: of layers and parameters, without `.weight`, in the model's order; weights: of those that
        are quantized; fused: of the recipe
    """
    kinds = {
        name: (str(each.format), each.shape[-1], each.shape[:-2] and each.shape, each.profile)
        for name, each in weights.items()
        if not shares(each.format, each.shape, each.parts)
    }
    together, alone = partners(names, kinds, fused)
    in_parts = [name for name in kinds if weights[name].parts > 1 and fused is not False]
    return {name: (name,) for name in in_parts} | together, alone


def group_note(name: str, group: Sequence[str], alone: str = "") -> str:
    """What the ledger says of a weight in a group that shares an outer scale, perhaps empty."""
    return ", ".join(filter(None, [shared_scale_note(name, group) if group else "", alone]))
