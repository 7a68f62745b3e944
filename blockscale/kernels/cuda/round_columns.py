"""Columns rounded one after the other: the processor does it, for tensors that lie on a GPU.

A column waits for the one before it, and a GPU would be asked dozens of times for each of them.
"""

from typing import Any

from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.kernels.registry import Formats, kernel, supporting, unavailable


def _known(formats: Formats, arguments: tuple[object, ...]) -> bool:
    spellings = tuple(str(each) for each in formats)
    return (
        unavailable("cpu") is None
        and supporting("round_columns", "cpu", spellings, arguments) is not None
    )


@kernel("round_columns", backend="cuda", supports=_known)
def round_columns(
    wanted: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.round_columns."""
    here = Quantizer._make(map(_here, by))
    args = wanted.cpu(), None if base is None else base.cpu(), coupling.cpu(), here
    found = supporting("round_columns", "cpu", (by.fmt,), args)
    assert found is not None
    codes, values, errors = (each.to(wanted.device) for each in found.run(*args))
    return codes, values, errors


def _here(part: Any) -> Any:
    """A part of a quantizer, a tensor or several of them, on the processor."""
    if isinstance(part, Tensor):
        return part.cpu()
    return [each.cpu() for each in part] if isinstance(part, list | tuple) else part
