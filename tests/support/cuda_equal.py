# SPDX-License-Identifier: BSD-3-Clause
"""Every primitive on given arguments, and whether the CUDA kernels give the reference's bits.

On a machine with a GPU they run there; elsewhere in Triton's interpreter, on the CPU's tensors.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.support.encoded import Results, by_reference, choosing, encoding
from tests.support.same import same

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def has_kernels(fmt: str) -> bool:
    """Whether CUDA kernels know the format, whose primitives the reference runs otherwise."""
    from blockscale.kernels.cuda.spec import primitive  # not before the interpreter is switched on

    return primitive((parse(fmt),), ())


def decoding(
    packed: Tensor, codes: Tensor | None, fmt: str, given: QParams, size: int, dtype: torch.dtype
) -> Results:
    """What the ops make of packed codes; codes: unpacked ones, if there are dimensions."""
    found = {"dequantize": P.dequantize(operand(packed, given, fmt, size), dtype)}
    if codes is not None:
        found["unpack"] = P.unpack(packed, fmt, size)
        found["pack"] = P.pack(codes, fmt)
    return found


def moved(parts: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [part if part is None else part.to(DEVICE) for part in parts]


def wrong(
    x: Tensor,
    fmt: str,
    seed: Tensor | None = None,
    given: QParams | None = None,
    decodes: torch.dtype | None = None,
) -> list[str]:
    """Names of the results whose bits differ from the reference's on the CPU.

    given: what takes a scale takes this one, not that of x; decodes: the dtype of dequantize.
    """
    form = parse(fmt)
    seed = torch.tensor([7, 3]) if seed is None and form.rounding == "stochastic" else seed
    size = x.shape[-1] if x.ndim else 1
    decodes = decodes or x.dtype
    given, expected = by_reference(x, fmt, seed, given)
    packed = expected["quantize"]
    with bs.use("reference"):
        codes = P.unpack(packed, fmt, size) if x.ndim else None
        expected |= decoding(packed, codes, fmt, given, size, decodes)
    x, packed, codes, seed = moved((x, packed, codes, seed))
    there = QParams(*moved(given))
    with bs.use("cuda"):
        found = choosing(x, fmt, seed) | encoding(x, fmt, there, seed)
        found |= decoding(packed, codes, fmt, there, size, decodes)
    assert found.keys() == expected.keys()
    return [name for name, tensor in found.items() if not same(tensor, expected[name])]
