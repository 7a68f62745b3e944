# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/core/profiles/producers/test_gguf.py: `in_blocks`, `RECORDED`.
"""

import pathlib

from safetensors.torch import load_file
from torch import Tensor

import blockscale as bs
from blockscale.export.checkpoints.gguf.records import TYPES

RECORDED = load_file(pathlib.Path(__file__).parents[1] / "recorded" / "ggml.safetensors")


def in_blocks(name: str, q: bs.QTensor) -> Tensor:
    """A tensor as the bytes of its type in a file [blocks, bytes]."""
    of = TYPES[name]
    assert str(q.format) == of.format  # what a file of this type is read as
    parts = {"codes": q.codes.reshape(-1, of.elements)}
    for part in q.format.parts:
        if not (part == "outer" and name == "NVFP4"):  # a tensor beside the blocks, and 1
            parts[part] = getattr(q.qparams, part).reshape(len(parts["codes"]), -1)
    return of.together(parts)
