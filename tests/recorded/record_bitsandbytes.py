# SPDX-License-Identifier: BSD-3-Clause
"""Record what bitsandbytes 0.50.2 does on a CPU, for tests that run without it.

    pip install --target /tmp/oracles --no-deps bitsandbytes==0.50.2
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_bitsandbytes.py

Writes bitsandbytes.safetensors beside this file: for nf4 and fp4, the packed codes and the scales
of `x.KIND` in blocks of 64 (`TYPE.packed.KIND`, `TYPE.absmax.KIND`) and the values of random codes
under random scales (`TYPE.bytes`, `TYPE.scales`, `TYPE.values`).
"""

import pathlib

import torch
from safetensors.torch import save_file

from tests.support.profile_inputs import KINDS

HERE = pathlib.Path(__file__).parent


def main() -> None:
    import bitsandbytes.functional as F  # not needed by the tests

    torch.manual_seed(12)
    tensors: dict[str, torch.Tensor] = {}
    for kind, make in KINDS.items():
        x = make()[:12, :96].contiguous()  # blocks of 64 cross rows
        tensors[f"x.{kind}"] = x
        for name in ("nf4", "fp4"):
            # Flattened: 0.50.2's own CPU kernel takes wrong scales where blocks cross rows.
            packed, state = F.quantize_4bit(x.flatten(), quant_type=name, blocksize=64)
            tensors[f"{name}.packed.{kind}"] = packed.flatten()
            tensors[f"{name}.absmax.{kind}"] = state.absmax
            tensors[f"{name}.values.{kind}"] = F.dequantize_4bit(packed, state).reshape(x.shape)
    for name in ("nf4", "fp4"):
        _, state = F.quantize_4bit(torch.randn(16, 64), quant_type=name, blocksize=64)
        codes = torch.randint(0, 256, (512, 1), dtype=torch.uint8)
        state.absmax = torch.randn(16) * torch.linspace(-30, 30, 16).exp2()
        tensors[f"{name}.bytes"], tensors[f"{name}.scales"] = codes.flatten(), state.absmax
        tensors[f"{name}.values"] = F.dequantize_4bit(codes, state)
    save_file(tensors, HERE / "bitsandbytes.safetensors", {"bitsandbytes": "0.50.2"})


if __name__ == "__main__":
    main()
