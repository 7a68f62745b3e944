# SPDX-License-Identifier: BSD-3-Clause
"""How to walk."""

from typing import NamedTuple

from blockscale.calibration.walk.resume import Finished
from blockscale.calibration.walk.settle import Settler
from blockscale.core.work.progress import Progress


class Options(NamedTuple):
    """How to walk. settler: of weights that are streamed; finished: blocks of an earlier run;
    seed: of what block algorithms draw by chance.

    sequential: each block sees what the quantized ones before it leave; "layers": and in a block
        each group of layers side by side sees the groups before it, in a run of its own;
        "once": each layer sees the layers before it, in one run of the block.
    """

    sequential: bool | str
    budget: float
    progress: Progress
    settler: Settler | None = None
    finished: Finished | None = None
    seed: int = 0
