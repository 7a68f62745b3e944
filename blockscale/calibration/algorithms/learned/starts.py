# SPDX-License-Identifier: BSD-3-Clause
"""Where learned rounding begins, and what it must not be worse than."""

from torch import Tensor

from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.algorithms.search import Search
from blockscale.core.format import Format
from blockscale.ops.flat import within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

STARTS = ("gptq", "search", "mse", "absmax")


def start_of(
    kind: str, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
) -> tuple[QTensor, list[str]]:
    """A weight [n, k] float32 by one of STARTS -> its codes, and notes; by a simpler one where that
    one cannot serve the format, or knows nothing of the inputs."""
    if kind == "absmax" or fmt.element.learned:  # a table is learned with the codes themselves
        return quantize(weight, fmt), []
    if kind == "gptq" and gram is not None and _in_columns(weight, fmt):
        return GPTQ().quantize(weight, fmt, gram, layer)
    if kind == "search" and gram is not None:
        return Search().quantize(weight, fmt, gram, layer)
    return MSE().quantize(weight, fmt, None, layer)


def _in_columns(weight: Tensor, fmt: Format) -> bool:
    """Whether columns can be rounded one after the other: no block over the flattened weight ends
    within a row."""
    return not (fmt.block.flat and within_rows(fmt, weight.shape).block.flat)
