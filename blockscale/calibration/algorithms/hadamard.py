# SPDX-License-Identifier: BSD-3-Clause
"""Hadamard rotation: spread each outlier over many features."""

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from blockscale.calibration.algorithms.hessian import OutputError
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.format import Format
from blockscale.layers.before import Before, Rotate, random_signs

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats


class Hadamard:
    """Multiplies input and weight by a Walsh-Hadamard matrix, for each `size` features.

    QuaRot: Ashkboos et al. 2024, arXiv 2404.00456, section 3; random signs first, as in QuIP#:
    Tseng et al. 2024, arXiv 2402.04396, section 3. QuaRot folds most rotations into the weights
    before; here each layer rotates its own input, which costs log2(size) additions an element and
    leaves what is between the layers as it was. Layers whose output would be further off on their
    sample are left alone.

    size: a power of two; None for the largest that divides the number of features
    seed: of the random signs, with the layer's name; None for no signs

    Raises ValueError for another size.
    """

    name: ClassVar[str] = "hadamard"
    needs_gram: ClassVar[bool] = False

    def __init__(self, size: float | None = None, *, seed: int | None = None):
        whole = size is None or (isinstance(size, float | int) and size == int(size) and size >= 2)
        if not whole or (size is not None and int(size) & (int(size) - 1)):
            raise ValueError(f"size must be a power of two >= 2, or None, got {size!r}")
        self.size, self.seed = None if size is None else int(size), seed

    def prepare(
        self,
        weight: Tensor,
        fmt: Format,
        input_fmt: Format | None,
        stats: "InputStats",
        layer: str,
    ) -> tuple[Before | None, list[str]]:
        """Weight [n, k] and what is known of its inputs -> a Rotate or None, and what was done.

        Raises ValueError for statistics of another number of inputs.
        """
        error = OutputError(weight, fmt, input_fmt, stats, layer)
        features = error.features
        size = self.size or features & -features
        if size < 2 or features % size:
            why = "an odd number" if self.size is None else f"not a multiple of {size}"
            return None, [f"not rotated: {features} features are {why}"]
        signs = None
        if self.seed is not None:
            signs = random_signs(features, named_seed(self.seed, layer))
        rotate = Rotate(features, size, signs).to(error.weight.device)
        return error.best([(f"rotated by {size}", rotate)])
