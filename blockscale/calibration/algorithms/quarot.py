# SPDX-License-Identifier: BSD-3-Clause
"""QuaRot: a decoder's residual stream rotated, folded into its weights."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from torch import Tensor, nn

from blockscale.calibration.algorithms.hadamard import Hadamard
from blockscale.core.format import Format

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats
    from blockscale.calibration.padding import Padding
    from blockscale.calibration.residual_stream import ResidualStream
    from blockscale.core.recipe import Recipe


class QuaRot:
    """Rotates what the layers of a decoder hand on, and folds it into weights: nothing to run.

    Ashkboos et al. 2024, arXiv 2404.00456, sections 3 and 4: gains of norms go into the matrices
    that read them, embeddings and all that writes to the stream are rotated, what reads it and the
    head counter-rotated, and the values of each head between the matrices around them. Norms that
    subtract a mean (LayerNorm) get a rotation that leaves the mean alone, instead of SliceGPT's new
    norms. What is between other layers is not rotated (the paper's stage 1c and 1d: keys, and the
    inputs of the output and down projections), unless online.

    online: also rotate the inputs of layers where that helps, at run time, as "hadamard" does
    seed: of the random signs

    Raises ValueError for a seed that is no int.
    """

    name: ClassVar[str] = "quarot"
    needs_gram: ClassVar[bool] = False

    def __init__(self, seed: float = 0, *, online: bool = False):
        if seed != int(seed):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        self.seed, self.rest = int(seed), Hadamard() if online else None

    def learned(
        self,
        model: nn.Module,  # noqa: ARG002 - what learns needs them
        stream: "ResidualStream",  # noqa: ARG002
        recipe: "Recipe",  # noqa: ARG002
        batches: Iterable[Any],  # noqa: ARG002
        padding: "Padding | None" = None,  # noqa: ARG002
    ) -> tuple[Tensor | None, list[str]]:
        """Nothing more than the fixed rotation."""
        return None, []

    def prepare(
        self,
        weight: Tensor,  # noqa: ARG002 - as transforms are called
        fmt: Format,  # noqa: ARG002 - as transforms are called
        input_fmt: Format | None,  # noqa: ARG002 - as transforms are called
        stats: "InputStats",  # noqa: ARG002 - as transforms are called
        layer: str,
    ) -> NoReturn:
        """Raises ValueError: no layer is rotated by itself."""
        raise ValueError(
            f"{layer}: {self.name!r} rotates a whole model (bs.calibrate), not one layer: use "
            "'hadamard' for a layer"
        )
