# SPDX-License-Identifier: BSD-3-Clause
"""Scales of one element, in any rank: an op takes [], [1] or [1, 1, 1] for that of a whole tensor.

What stands behind an op, its reference and every kernel, sees the tensor's own rank: here, in front
of them, a part of one element gets it. A part that has the rank already costs a comparison.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import ref

from torch import Tensor

from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.ops.operand import Tuples

PARTS = ("scale", "zero_point", "outer")


def fitting(kinds: Mapping[str, Any]) -> tuple[Tuples, Tuples]:
    """Of an op with arguments of these types: whether parts have their ranks, the arguments with
    them.

    Both take the op's own arguments, all of them. A Quantizer is that of the argument `x`; in an op
    without one, or of fused operands, whose result has a rank of its own, it stays as it is.
    """
    fused = any(kind in (Value, list[Value]) for kind in kinds.values())
    x = "" if fused or "x" not in kinds else "x"
    checks, made = [], []
    for name, kind in kinds.items():
        made.append(name)
        if kind == list[Value]:
            checks.append(f"all(map(_fits, {name}))")
            made[-1] = f"[_of_rank(each, each[0].ndim) for each in {name}]"
        elif rank := _rank(name, kind, x):
            checks += [f"({name}.{part} is None or {name}.{part}.ndim == {rank})" for part in PARTS]
            checks.append(f"not {name}.more")
            made[-1] = f"_of_rank({name}, {rank})"
    written = ", ".join(kinds)
    scope = {"_of_rank": _of_rank, "_fits": _fits}
    # as text, because a loop over arguments would cost a microsecond a call
    fits: Tuples = eval(f"lambda {written}: {' and '.join(checks) or True}", scope)
    fitted: Tuples = eval(f"lambda {written}: ({''.join(f'{each}, ' for each in made)})", scope)
    return fits, fitted


def _fits(value: Value) -> bool:
    parts = (value.scale, value.zero_point, value.outer)
    return not value.more and all(p is None or p.ndim == value.data.ndim for p in parts)


def _rank(name: str, kind: Any, x: str) -> str:
    """The expression for the rank that the parts of an argument need; "" for one without parts."""
    if kind in (Operand, Value):
        return f"{name}[0].ndim"
    return f"{x}.ndim" if kind is Quantizer and x else ""


def accepting(
    reference: Callable[..., Any], fits: Tuples, fitted: Tuples, defaults: tuple[Any, ...]
) -> Callable[..., Any]:
    """The reference, which then takes parts of one element in any rank."""

    @wraps(reference)
    def accepts(*args: Any) -> Any:
        args += defaults[len(args) :]
        return reference(*args) if fits(*args) else reference(*fitted(*args))

    return accepts


def _of_rank(held: Any, rank: int) -> Any:
    """An Operand, Quantizer or Value with its parts of one element in `rank` dimensions."""
    if held.scale is None:
        return held
    keep = not isinstance(held, Quantizer)
    if not isinstance(held, Quantizer) and not held.scale.ndim and rank == 1 and held.size == 1:
        rank = 0  # one code, packed as a row: that of a tensor without a dimension
    parts: dict[str, Any] = {name: _shaped(getattr(held, name), rank, keep) for name in PARTS}
    if held.more:
        parts["more"] = [_shaped(part, rank, keep) for part in held.more]
    return held._replace(**parts)


def _shaped(part: Tensor | None, rank: int, keep: bool) -> Tensor | None:
    if part is None or part.ndim == rank or part.numel() != 1:
        return part
    if not keep or type(part) is not Tensor or part.requires_grad:
        return part.reshape((1,) * rank)
    return _kept_view(part, rank)


_views: dict[tuple[int, int], tuple[Any, Tensor]] = {}


def _kept_view(part: Tensor, rank: int) -> Tensor:
    """The same view at every call, because what kernels keep beside a weight is that of its very
    tensors (blockscale.kernels.resident)."""
    key = id(part), rank
    kept = _views.get(key)
    if kept is not None and kept[0]() is part and kept[1].data_ptr() == part.data_ptr():
        return kept[1]

    def forget(gone: Any) -> None:
        if key in _views and _views[key][0] is gone:
            del _views[key]

    view = part.detach().reshape((1,) * rank)  # detached: a view would keep `part` itself alive
    _views[key] = ref(part, forget), view
    return view
