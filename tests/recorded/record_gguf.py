# SPDX-License-Identifier: BSD-3-Clause
"""Record what gguf 0.19.0 does, for tests that run without it.

    pip install --target /tmp/oracles --no-deps gguf==0.19.0
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_gguf.py

Writes gguf.safetensors beside this file: for each type of DECODED, random bytes under random finite
scales (`TYPE.bytes`, rows of blocks) and gguf's own values of them (`TYPE.values`); for each of
ENCODED, gguf's bytes of the numbers `x` (`TYPE.encoded`), of which `x.KIND` are of one kind each.
"""

import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file

from tests.support.profile_inputs import KINDS

HERE = pathlib.Path(__file__).parent
# where the fp16 scales of a block of each type lie
DECODED = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
ENCODED = ("Q8_0", "Q4_0", "Q5_0", "MXFP4")
BLOCKS = 6


def random_bytes(size: int, scales: list[int], generator: np.random.Generator) -> np.ndarray:
    """Random blocks whose scales are random finite fp16 numbers; the first have the edges."""
    blocks = generator.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for place in scales:
        numbers = generator.integers(0, 2**16, BLOCKS, dtype=np.uint16).view(np.float16)
        numbers[~np.isfinite(numbers)] = 1.5
        numbers[:3] = [-0.0, 2.0**-24, -0.125]
        blocks[:, place : place + 2] = numbers.view(np.uint8).reshape(-1, 2)
    return blocks


def main() -> None:
    import gguf  # not needed by the tests

    generator = np.random.default_rng(12)
    torch.manual_seed(12)
    arrays: dict[str, np.ndarray] = {}
    for name, scales in DECODED.items():
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_bytes(gguf.GGML_QUANT_SIZES[kind][1], scales, generator)
        arrays[f"{name}.bytes"] = blocks
        arrays[f"{name}.values"] = gguf.dequantize(blocks, kind)
    for kind_of_numbers, make in KINDS.items():
        x = make()[:12, :64].numpy().copy()
        arrays[f"x.{kind_of_numbers}"] = x
        for name in ENCODED:
            encoded = gguf.quantize(x, gguf.GGMLQuantizationType[name])
            arrays[f"{name}.encoded.{kind_of_numbers}"] = encoded
    save_file(arrays, HERE / "gguf.safetensors", {"gguf": "0.19.0"})


if __name__ == "__main__":
    main()
