"""Codes of one format as codes of another."""

from torch import Tensor

from blockscale.ops.fused.define import fused


@fused()
def requantize(x: Tensor) -> Tensor:
    """x [...] -> the same numbers, quantized as the result is."""
    return x.clone()
