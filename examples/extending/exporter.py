# SPDX-License-Identifier: BSD-3-Clause
"""numpy's .npz: the codes and scales of a model, for programs that know no torch."""

# Goes to:   blockscale/export/to_npz.py
# Its test:  tests/export/test_to_npz.py: a file that numpy loads holds the same bits.
# By itself: bs.export.npz, and its line in bs.export.targets(). Where the target needs a package
#            that may be missing, import it inside, and define `unavailable()` beside the function.

from pathlib import Path

import numpy as np
import torch
from torch import nn

from blockscale.files.whole import check_place, written_whole


def npz(model: nn.Module, path: str | Path) -> None:
    """Write every tensor of a model's state to numpy's .npz file, under its name in the state.

    Raises ValueError, before anything is written, for a tensor of a dtype that numpy lacks.
    """
    path = check_place(path, "model.npz")
    arrays = {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype is torch.bfloat16:
            raise ValueError(f"{name} is bfloat16, which numpy lacks: export model.float()")
        arrays[name] = tensor.detach().cpu().numpy()
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
