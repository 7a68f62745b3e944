# SPDX-License-Identifier: BSD-3-Clause
"""The block types of GGUF: how bytes become the parts of one of our formats, and back.

Layouts: ggml's ggml-common.h (commit d99724f2) and gguf-py's quants.py (0.19.0). Codes, scales and
offsets are taken as they are stored, none is computed anew; so what is read and written again has
the same bytes. Tensors of parts have a row for each block: codes [n, elements], scales [n, scales].
"""

import re

import torch

from blockscale.export.checkpoints.gguf.fields import BlockType as BlockType
from blockscale.export.checkpoints.gguf.fields import Parts as Parts
from blockscale.export.checkpoints.gguf.k_types import K_TYPES
from blockscale.export.checkpoints.gguf.simple_types import SIMPLE_TYPES

TYPES = SIMPLE_TYPES | K_TYPES

# Tensors that are not quantized: {name: (number, dtype)}
PLAIN = {
    "F32": (0, torch.float32), "F16": (1, torch.float16), "I8": (24, torch.int8),
    "I16": (25, torch.int16), "I32": (26, torch.int32), "I64": (27, torch.int64),
    "F64": (28, torch.float64), "BF16": (30, torch.bfloat16),
}  # fmt: skip

# {number: (name, elements, bytes)}: codes of vectors in grids of ggml's own, which are no elements
# of any format; their bytes can be copied.
GRIDS = {
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    29: ("IQ1_M", 256, 56),
}  # fmt: skip

# {general.file_type: the type of most tensors} (llama.cpp, llama_ftype); mixes have others, too
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q3_K", 13: "Q3_K", 14: "Q4_K", 15: "Q4_K", 16: "Q5_K", 17: "Q5_K", 18: "Q6_K",
    25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

# Layers beside whose NVFP4 weight llama.cpp looks for a scale of all scales (llama-model.cpp)
_SCALED = re.compile(
    r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down)(_shexp|_exps)?)\.weight"
)


def scale_of(name: str) -> str | None:
    """The name of the scale of all scales of an NVFP4 tensor; None where there is none."""
    return f"{name.removesuffix('weight')}scale" if _SCALED.fullmatch(name) else None
