# SPDX-License-Identifier: BSD-3-Clause
"""Directories in compressed-tensors' layouts, of any bytes, and what it decompresses of them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

E4M3 = torch.float8_e4m3fn
CLASSES = {
    "pack-quantized": "PackedQuantizationCompressor",
    "int-quantized": "IntQuantizationCompressor",
    "float-quantized": "FloatQuantizationCompressor",
    "naive-quantized": "NaiveQuantizationCompressor",
    "nvfp4-pack-quantized": "NVFP4PackedCompressor",
    "mxfp4-pack-quantized": "MXFP4PackedCompressor",
    "mxfp6-pack-quantized": "MXFP6PackedCompressor",
    "mxfp8-quantized": "MXFP8QuantizationCompressor",
}
Tensors = dict[str, torch.Tensor]


def any_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def any_scales(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    """Of both signs, wide, some 0, -0 and subnormal."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-130, 100, shape, generator=generator).double()
    if dtype == torch.float16:
        powers = powers / 12
    found = (torch.randn(shape, generator=generator, dtype=torch.float64) * 2.0**powers).to(dtype)
    flat = found.view(-1)
    flat[: flat.numel() // 8] = 0.0
    flat[flat.numel() // 8 : flat.numel() // 4] *= -0.0
    return found


def decompressed(layout: str, arguments: dict, stored: Tensors) -> torch.Tensor:
    """The producer's own values of a module's tensors."""
    from compressed_tensors import compressors  # takes seconds
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    return getattr(compressors, CLASSES[layout]).decompress(dict(stored), scheme)["weight"]


def configuration(layout: str, arguments: dict, targets: tuple[str, ...] = ("Linear",)) -> dict:
    group = {"targets": list(targets), "weights": arguments, "format": layout}
    return {"quant_method": "compressed-tensors", "format": layout,
            "quantization_status": "compressed", "config_groups": {"group_0": group}}  # fmt: skip


def directory(path: Path, stored: Tensors, config: dict | None) -> Path:
    """A model's directory with these tensors of the module `m`."""
    path.mkdir(exist_ok=True)
    tensors = {f"m.{name}": tensor.contiguous() for name, tensor in stored.items()}
    save_file(tensors | {"norm.weight": torch.ones(3)}, path / "model.safetensors")
    text = json.dumps({"quantization_config": config} if config else {})
    (path / "config.json").write_text(text)
    return path


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal in every bit, NaN for NaN."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    bits = {2: torch.int16, 4: torch.int32}[found.element_size()]
    both = found.isnan() & expected.isnan()
    return bool(((found.contiguous().view(bits) == expected.contiguous().view(bits)) | both).all())
