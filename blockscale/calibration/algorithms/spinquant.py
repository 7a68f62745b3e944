# SPDX-License-Identifier: BSD-3-Clause
"""SpinQuant: the rotation of a decoder's residual stream, learned."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from blockscale.calibration.algorithms.quarot import QuaRot
from blockscale.calibration.rotations.learn import RotationSettings, learn

if TYPE_CHECKING:
    from blockscale.calibration.padding import Padding
    from blockscale.calibration.rotations.stream import ResidualStream
    from blockscale.core.recipe import Recipe


class SpinQuant(QuaRot):
    """QuaRot with a residual rotation learned by Cayley steps from the fixed one.

    Liu et al. 2024, arXiv 2405.16406, section 3.2; `rotations.learn` says where we differ. Like the
    paper's, its result costs nothing at run time.

    steps: steps of the descent, one batch each; rate: the largest step; batches: how many serve

    Raises ValueError for steps or batches under 1 and rates that are not positive.
    """

    name: ClassVar[str] = "spinquant"

    def __init__(
        self,
        steps: float = 100,
        *,
        rate: float = 1.5,
        batches: int = 8,
        seed: int = 0,
        online: bool = False,
    ):
        super().__init__(seed, online=online)
        if steps != int(steps) or steps < 1 or batches < 1 or not rate > 0:
            raise ValueError(
                f"spinquant: steps, rate and batches must be > 0, got {steps}, {rate}, {batches}"
            )
        self.settings = RotationSettings(int(steps), rate, batches)

    def learned(
        self,
        model: nn.Module,
        stream: "ResidualStream",
        recipe: "Recipe",
        batches: Iterable[Any],
        padding: "Padding | None" = None,
    ) -> tuple[Tensor | None, list[str]]:
        """The rotation that follows the fixed one, or None where none was better."""
        if iter(batches) is batches:
            raise ValueError(
                "batches can be read only once, and spinquant reads them in every step: pass "
                "a list or a DataLoader"
            )
        return learn(model, stream, recipe, batches, self.settings, padding)
