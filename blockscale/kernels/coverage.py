# SPDX-License-Identifier: BSD-3-Clause
"""Which formats run on the kernels of a backend, and why the others run on the reference."""

import warnings
from dataclasses import dataclass

from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.numbers import lower
from blockscale.kernels.registry import KERNELS, ByFormats, unavailable

OPS = ("quantize", "dequantize", "fake_quantize", "linear", "embedding", "conv", "conv_transpose")


@dataclass(frozen=True)
class Coverage:
    """One op on one backend.

    runs: the named formats that its kernels take; by_call: those of which they look at tensors, too
    reference: {named format: why it runs on the reference}
    """

    op: str
    runs: tuple[str, ...]
    by_call: tuple[str, ...]
    reference: dict[str, str]


def coverage(backend: str) -> tuple[Coverage, ...]:
    """What a backend's kernels take, op by op; () where the backend cannot run here."""
    if unavailable(backend) is not None:
        return ()
    with warnings.catch_warnings():
        # asking may start a device, which then says what `Hardware.adapters` says: it is software
        warnings.filterwarnings("ignore", "WebGPU computes on", UserWarning)
        return tuple(_of_op(op, backend) for op in OPS)


def _of_op(op: str, backend: str) -> Coverage:
    kernels = KERNELS.get((op, backend), [])
    known = [each.supports for each in kernels if isinstance(each.supports, ByFormats)]
    runs, by_call, reference = [], [], {}
    for name, spelling in CATALOG.items():
        formats = (parse(spelling),)
        if any(supports(formats, ()) for supports in known):
            runs.append(name)
        elif len(known) < len(kernels):
            by_call.append(name)
        else:
            reference[name] = _why(op, backend, spelling) if kernels else _NONE.format(backend, op)
    return Coverage(op, tuple(runs), tuple(by_call), reference)


_NONE = "no {} kernel computes {}"


def _why(op: str, backend: str, spelling: str) -> str:
    """What of a format the kernels do not know."""
    numbers = lower(spelling)
    if numbers is None:
        return "its element does not describe its numbers to kernels (Element.numbers)"
    if not numbers.features:
        return f"no {backend} kernel of {op} takes its elements"
    return f"no {backend} kernel of {op} takes its elements with {', '.join(numbers.features)}"
