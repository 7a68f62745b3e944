# SPDX-License-Identifier: BSD-3-Clause
"""Record weights as NVIDIA ModelOpt 0.47.0 stores them, of any bytes, and its own values of them.

    pip install --target /tmp/oracles --no-deps nvidia-modelopt==0.47.0 pulp nvidia-ml-py scipy
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_modelopt.py

Writes modelopt.safetensors (what is stored) and modelopt_values.safetensors beside this file.
"""

import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
E4M3 = torch.float8_e4m3fn


def any_bytes(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def main() -> None:
    from modelopt.torch.export.quant_utils import pack_int4_in_uint8
    from modelopt.torch.quantization.qtensor import (
        FP8QTensor,
        MXFP4QTensor,
        MXFP8QTensor,
        NVFP4QTensor,
    )

    stored: dict[str, torch.Tensor] = {}
    values: dict[str, torch.Tensor] = {}
    shape, f32 = torch.Size((6, 64)), torch.float32

    codes, scale, two = any_bytes(6, 32, seed=1), any_bytes(6, 4, seed=2), torch.tensor(0.0123)
    stored |= {"nvfp4.weight": codes, "nvfp4.weight_scale": scale.view(E4M3)}
    stored["nvfp4.weight_scale_2"] = two
    values["nvfp4.weight"] = NVFP4QTensor(shape, f32, codes).dequantize(
        dtype=f32, scale=scale.view(E4M3), double_scale=two, block_sizes={-1: 16}
    )
    powers = any_bytes(6, 2, seed=3) % 255
    stored |= {"mxfp4.weight": codes.clone(), "mxfp4.weight_scale": powers}
    values["mxfp4.weight"] = MXFP4QTensor(shape, f32, codes).dequantize(
        dtype=f32, scale=powers, block_sizes={-1: 32}
    )
    eight = any_bytes(6, 64, seed=4).view(E4M3)
    stored |= {"mxfp8.weight": eight, "mxfp8.weight_scale": powers.clone()}
    values["mxfp8.weight"] = MXFP8QTensor(shape, f32, eight).dequantize(dtype=f32, scale=powers)
    stored |= {"fp8.weight": eight.clone(), "fp8.weight_scale": torch.tensor(0.0371)}
    values["fp8.weight"] = FP8QTensor(shape, f32, eight).dequantize(
        dtype=f32, scale=torch.tensor(0.0371)
    )
    tiles = torch.rand(2, 2, generator=torch.Generator().manual_seed(5))
    large = any_bytes(140, 150, seed=6).view(E4M3)[:, :].contiguous()
    stored |= {"pb.weight": large, "pb.weight_scale": tiles.reshape(2, 1, 2, 1).clone()}
    values["pb.weight"] = FP8QTensor(torch.Size((140, 150)), f32, large).dequantize(
        dtype=f32, scale=tiles, block_sizes={-1: 128, -2: 128}
    )
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(7))
    scale = weight.reshape(8, 2, 128).abs().amax(-1) / 7
    stored |= {"awq.weight": pack_int4_in_uint8(weight, scale, 128), "awq.weight_scale": scale}
    stored["awq.pre_quant_scale"] = torch.rand(256)
    spread = scale.repeat_interleave(128, 1)
    values["awq.weight"] = (weight / spread).round().clamp(-8, 7).to(
        torch.int8
    ) * spread  # it packs
    meta = {"modelopt": "0.47.0"}
    save_file(stored, HERE / "modelopt.safetensors", meta)
    kept = {name: value.contiguous() for name, value in values.items() if name != "pb.weight"}
    kept["pb.weight"] = values["pb.weight"][100:, 100:].contiguous()  # about a corner
    save_file(kept, HERE / "modelopt_values.safetensors", meta)


if __name__ == "__main__":
    main()
