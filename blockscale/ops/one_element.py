"""Scales of one element, in any rank: an op takes [], [1] or [1, 1, 1] for that of a whole tensor.

What stands behind an op, its reference and every kernel, sees the tensor's own rank: here, in front
of them, a part of one element gets it. A part that has the rank already costs a comparison.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints
from weakref import ref

from torch import Tensor

from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.ops.operand import Tuples

PARTS = ("scale", "zero_point", "outer")


def fitting(reference: Callable[..., Any]) -> tuple[Tuples, Tuples]:
    """Of the op that `reference` defines: whether parts have their ranks, the arguments with them.

    Both take the op's own arguments, all of them. A Quantizer is that of the argument `x`; in an op
    without one, or of fused operands, whose result has a rank of its own, it stays as it is.
    """
    hints = get_type_hints(reference)
    hints.pop("return", None)
    fused = Value in hints.values()
    checks, made = [], []
    for name, kind in hints.items():
        rank = _rank(name, kind, "" if fused or "x" not in hints else "x")
        made.append(f"_of_rank({name}, {rank})" if rank else name)
        if rank:
            checks += [f"({name}.{part} is None or {name}.{part}.ndim == {rank})" for part in PARTS]
            checks.append(f"not {name}.more")
    written = ", ".join(hints)
    scope = {"_of_rank": _of_rank}  # as text, because a loop over arguments would cost a µs a call
    fits: Tuples = eval(f"lambda {written}: {' and '.join(checks) or True}", scope)
    fitted: Tuples = eval(f"lambda {written}: ({''.join(f'{each}, ' for each in made)})", scope)
    return fits, fitted


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
    keep = isinstance(held, Operand)
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
