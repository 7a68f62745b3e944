# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block that leaves the least squared error, found by trying many.

Clipping the range for the least squared error is old (Max 1960, Lloyd 1982); for weights see
Banner et al., "Post training 4-bit quantization of convolutional networks", NeurIPS 2019, and for
block scales that also grow (an e2m1 block filled to 4 instead of 6) Cook et al., "Four over six",
2025.
"""

from typing import ClassVar

from torch import Tensor

from blockscale.calibration.algorithms.block_scales import best_scales, quantized, widened
from blockscale.calibration.algorithms.hessian import check_weighting, importance_of
from blockscale.core.format import Format
from blockscale.ops.tensor import QTensor


class MSE:
    """Least squared error of the weight, or, weighted, nearly of the layer's output.

    weighting: "none", or "gram": each column's errors count by the mean square of its input, the
        diagonal of the gram matrix, which then is needed.

    Candidates are the ranges of a block times `factors`, put through the format's own scale rule;
    with a zero point, its two neighbours too. The best is polished: for its codes the best step is
    known in closed form. What `bs.quantize` would choose is a candidate, so that no block gets
    worse.
    """

    name: ClassVar[str] = "mse"
    by_rows: ClassVar[bool] = True

    def __init__(self, weighting: str = "none"):
        check_weighting("mse", weighting)
        self.weighting = weighting

    @property
    def needs_gram(self) -> bool:
        """Whether errors count by the inputs' mean square."""
        return self.weighting == "gram"

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`."""
        x = widened(weight, fmt, layer)
        importance = None
        notes: list[str] = []
        if self.needs_gram:
            gram = None if gram is None else gram.to(x.device)
            importance, notes = importance_of(gram, x.shape[1], layer)
        return quantized(x, best_scales(x, fmt, importance), fmt), notes
