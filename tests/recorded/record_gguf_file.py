# SPDX-License-Identifier: BSD-3-Clause
"""Make a GGUF file as gguf 0.19.0 writes it, whole and split, and record its own values of it.

    pip install --target /tmp/oracles --no-deps gguf==0.19.0
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_gguf_file.py

Writes small.gguf, split-00001-of-00002.gguf, split-00002-of-00002.gguf and gguf_values.safetensors
beside this file. Blocks are random bytes, all but those that no writer stores; scales are any.
"""

import pathlib

import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
NAMES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "IQ2_XXS",
)  # fmt: skip


def random_blocks(name: str, size: int, generator: np.random.Generator) -> np.ndarray:
    """Bytes [2, 3 * size] of three blocks a row."""
    blocks = generator.integers(0, 256, (6, size), dtype=np.uint8)
    if name == "TQ2_0":  # a code of 3 becomes 1
        codes = blocks[:, :64]
        codes &= ~((codes & (codes >> 1) & 0x55) << 1)
    if name == "MXFP4":
        blocks[:, 0] %= 255
    if name == "NVFP4":
        blocks[:, :4] %= 127
    return blocks.reshape(2, 3 * size)


def main() -> None:
    import gguf  # not needed by the tests

    kinds, sizes = gguf.GGMLQuantizationType, gguf.GGML_QUANT_SIZES
    generator = np.random.default_rng(22)
    values: dict[str, np.ndarray] = {}
    tensors: dict[str, tuple[np.ndarray, object]] = {}
    for name in NAMES:
        blocks = random_blocks(name, sizes[kinds[name]][1], generator)
        tensors[f"blk.0.{name}.weight"] = blocks, kinds[name]
        if name in ("Q1_0", "IQ2_XXS"):  # gguf-py has no decoder, or we have none
            continue
        with np.errstate(all="ignore"):
            values[f"blk.0.{name}.weight"] = gguf.dequantize(blocks, kinds[name])
    for name, dtype in (("norm", np.float32), ("half", np.float16), ("bytes", np.int8)):
        numbers = (generator.standard_normal((3, 5)) * 9).astype(dtype)
        tensors[name], values[name] = (numbers, None), numbers
    for split in (0, 60):  # bytes are not split by gguf below; tensors are
        path = HERE / ("split.gguf" if split else "small.gguf")
        writer = gguf.GGUFWriter(path, "llama", split_max_tensors=15 if split else 0)
        writer.add_string("general.name", "recorded")
        writer.add_uint32("llama.block_count", 1)
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "é", "x" * 40])
        writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.25])
        writer.add_bool("flag", True)
        for name, (data, kind) in tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    save_file(values, HERE / "gguf_values.safetensors", {"gguf": "0.19.0"})


if __name__ == "__main__":
    main()
