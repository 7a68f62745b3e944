# SPDX-License-Identifier: BSD-3-Clause
"""Record what producers' own quantizers give on a CPU, for tests that run without them.

    pip install --target /tmp/oracles --no-deps bitsandbytes==0.50.2 mlx==0.32.4 mlx-cpu==0.32.4 \\
        hqq==0.2.8.post1 optimum-quanto==0.2.7 nvidia-modelopt==0.47.0 termcolor einops omegaconf
    pip download --no-deps auto-gptq==0.7.1 autoawq==0.2.9       # of these, quantizer.py of each as
        # /tmp/oracles/auto_gptq_quantizer.py and awq_quantizer.py: the rest needs a GPU
    pip install --target /tmp/oracles --no-deps nncf==3.4.0 openvino==2026.4.1 openvino-telemetry \\
        natsort dmx-compressor==0.1.11 parse bidict
    git clone https://github.com/microsoft/microxcaling && git -C microxcaling checkout 3b429a8
    ln -s $PWD/microxcaling/mx /tmp/oracles/mx
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_profiles.py PRODUCER...

Writes profiles_PRODUCER.safetensors beside this file: numbers `x.KIND`, as float32; and for each
profile, dtype and kind `PROFILE.DTYPE.KIND.PART`: the codes and what stands beside them, in the
shapes of our format of the profile.
"""

import ast
import importlib
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from blockscale.core.parse import parse
from tests.support.profile_inputs import KINDS, some_rows

HERE = pathlib.Path(__file__).parent
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Made = Iterator[tuple[str, dict[str, Tensor]]]  # profile, parts
COLUMNS = 128


def bnb(x: Tensor) -> Made:
    import bitsandbytes.functional as F

    flat = x.flatten()  # its own CPU kernels take wrong scales where blocks cross rows
    for name in ("nf4", "fp4"):
        packed, state = F.quantize_4bit(flat, quant_type=name, blocksize=64)
        codes = torch.stack([packed >> 4, packed & 15], -1).reshape(x.shape)
        yield name, {"codes": codes, "scale": state.absmax.reshape(1, -1)}
    codes, largest, _ = torch.ops.bitsandbytes.int8_vectorwise_quant.default(x.clone(), 0.0)
    yield "int8", {"codes": codes, "largest": largest.reshape(-1, 1)}


def quanto(x: Tensor) -> Made:
    from optimum.quanto import AbsmaxOptimizer, MaxOptimizer, qtypes, quantize_weight

    for name in ("qint8", "qfloat8_e4m3fn", "qfloat8_e5m2"):
        kind = qtypes[name]
        scale = AbsmaxOptimizer()(x, kind, 0)
        q = quantize_weight(x, kind, 0, scale)
        codes = q._data.contiguous().view(torch.int8 if name == "qint8" else torch.uint8)
        yield name.removesuffix("_e4m3fn"), {"codes": codes, "scale": q._scale}
    for name in ("qint4", "qint2"):
        kind = qtypes[name]
        scale, shift = MaxOptimizer()(x, kind, 0, 128)
        codes = torch.ops.quanto.quantize_affine(x, kind.bits, 0, 128, scale, shift)
        parts = {"scale": scale, "offset": -shift}
        shape = (len(x), -1)
        yield (
            name,
            {
                "codes": codes.reshape(x.shape),
                **{part: each.reshape(shape) for part, each in parts.items()},
            },
        )


def gptq(x: Tensor) -> Made:
    quantizer = importlib.import_module("auto_gptq_quantizer")
    if x.dtype != torch.float32:
        return
    groups = x.reshape(-1, 64)
    for bits in (2, 3, 4, 8):
        for name, sym in (("int", True), ("uint", False)):
            own = quantizer.Quantizer()
            own.configure(bits, perchannel=True, sym=sym)
            own.find_params(groups, weight=True)
            codes = torch.clamp(torch.round(groups / own.scale) + own.zero, 0, own.maxq)
            shape = (len(x), -1)
            yield (
                f"{name}{bits}",
                {
                    "codes": codes.reshape(x.shape).to(torch.uint8),
                    "scale": own.scale.half().reshape(shape),
                    "zero_point": own.zero.int().reshape(shape),
                },
            )


def awq(x: Tensor) -> Made:
    if x.dtype != torch.float16:
        return
    source = pathlib.Path(find("awq_quantizer.py")).read_text()
    [made] = (
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.FunctionDef) and each.name == "pseudo_quantize_tensor"
    )
    names: dict[str, object] = {"torch": torch}
    exec(compile(ast.Module([made], []), "awq", "exec"), names)
    groups = x.reshape(-1, 64)
    for name, zero_point in (("uint4", True), ("int4", False)):
        own = types.SimpleNamespace(group_size=64, zero_point=zero_point, w_bit=4)
        _, scale, zero = names["pseudo_quantize_tensor"](own, x)  # type: ignore[operator]
        steps = torch.round(groups / scale.reshape(-1, 1))
        if zero_point:
            codes = torch.clamp(steps + zero.reshape(-1, 1), 0, 15).to(torch.uint8)
            yield name, {"codes": codes.reshape(x.shape), "scale": scale, "zero_point": zero.int()}
        else:
            codes = torch.clamp(steps, -8, 7).to(torch.int8)
            yield name, {"codes": codes.reshape(x.shape), "scale": scale}


def find(name: str) -> str:
    """A file on the path."""
    return next(str(p) for p in (pathlib.Path(each) / name for each in sys.path) if p.is_file())


def onnxruntime(x: Tensor) -> Made:
    from onnx import TensorProto
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits, quantize_matmul_8bits
    from onnxruntime.quantization import quant_utils

    if x.dtype != torch.float32:
        return
    rows, columns = x.shape
    for bits, quantize in ((4, quantize_matmul_4bits), (8, quantize_matmul_8bits)):
        for name, sym in (("int", True), ("uint", False)):
            packed = np.zeros((rows, columns // 32, 4 * bits), dtype=np.uint8)
            zero = np.zeros((rows, columns * bits // 256), dtype=np.uint8)
            scale = np.zeros((rows, columns // 32), dtype=np.float32)
            weight = np.ascontiguousarray(x.T.numpy())
            quantize(packed, weight, scale, zero, 32, rows, columns, sym)

            def apart(data: object, bits: int = bits) -> Tensor:
                each = torch.from_numpy(data).reshape(rows, -1)  # type: ignore[arg-type]
                return torch.stack([each & 15, each >> 4], -1).flatten(1) if bits == 4 else each

            parts = {"codes": apart(packed), "scale": torch.from_numpy(scale)}
            if sym:
                parts["codes"] = (parts["codes"].int() - 2 ** (bits - 1)).to(torch.int8)
            else:
                parts["zero_point"] = apart(zero).int()
            yield f"matmul_{name}{bits}", parts
    codes, scales = [], []
    for row in x.numpy():
        zero, scale = quant_utils.compute_data_quant_params(row, TensorProto.INT8, symmetric=True)
        codes.append(quant_utils.quantize_nparray(TensorProto.INT8, row, scale, zero))
        scales.append(float(scale))
    yield (
        "qdq_int8",
        {
            "codes": torch.from_numpy(np.stack(codes)),
            "scale": torch.tensor(scales).reshape(-1, 1),
        },
    )


def compressed_tensors(x: Tensor) -> Made:
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    def made(size: int, **told: object) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        args = QuantizationArgs(**told)
        groups = x.reshape(len(x), -1, size)
        low, high = groups.amin(-1), groups.amax(-1)
        outer = None
        if told["strategy"] == "tensor_group":
            outer = generate_gparam(low.min(), high.max())
        scale, zero = calculate_qparams(low, high, args, outer)
        codes = quantize(x, scale, zero, args, global_scale=outer)
        return codes, scale, zero, outer

    for bits in (4, 8):
        for symmetric in (True, False):
            usual = {"num_bits": bits, "strategy": "group", "group_size": 64}
            codes, scale, zero, _ = made(64, symmetric=symmetric, **usual)
            if symmetric:
                yield f"int{bits}", {"codes": codes.to(torch.int8), "scale": scale}
                continue
            half = 2 ** (bits - 1)
            parts = {"codes": (codes.int() + half).to(torch.uint8), "scale": scale}
            yield f"uint{bits}", parts | {"zero_point": zero.int() + half}
    rows = {"num_bits": 8, "type": "float", "strategy": "channel"}
    codes, scale, _, _ = made(COLUMNS, symmetric=True, **rows)
    codes = codes.to(torch.float8_e4m3fn).view(torch.uint8)
    yield "fp8", {"codes": codes, "scale": scale.reshape(-1, 1)}
    for name, bits in (("mxfp4", 4), ("mxfp6", 6), ("mxfp8", 8)):
        given = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32}
        codes, scale, _, _ = made(32, symmetric=True, scale_dtype=torch.uint8, **given)
        byte = (scale.float().log2() + 127).round().to(torch.uint8)
        yield name, {"codes": coded(codes.float(), {4: "e2m1", 6: "e2m3", 8: "e4m3"}[bits]),
                     "scale": byte}  # fmt: skip
    given = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    codes, scale, _, outer = made(16, symmetric=True, scale_dtype=torch.float8_e4m3fn, **given)
    assert outer is not None
    yield (
        "nvfp4",
        {
            "codes": coded(codes.float(), "e2m1"),
            "scale": scale.to(torch.float8_e4m3fn).view(torch.uint8),
            "outer": outer.reshape(1, 1),
        },
    )


def coded(values: Tensor, element: str) -> Tensor:
    """Values of an element -> its codes, bit for bit."""
    codes = torch.arange(2 ** parse(f"{element}:tensor:fp32").bits, dtype=torch.uint8)
    table = parse(f"{element}:tensor:fp32").element.decode(codes).view(torch.int32)
    same = values.contiguous().view(torch.int32).unsqueeze(-1) == table
    assert bool(same.any(-1).all())
    return same.to(torch.uint8).argmax(-1).to(torch.uint8)


def mlx(x: Tensor) -> Made:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    own = mx.array(x.float().numpy()).astype(
        {torch.float32: mx.float32, torch.bfloat16: mx.bfloat16, torch.float16: mx.float16}[x.dtype]
    )

    def unpacked(words: object, bits: int) -> Tensor:
        data = torch.from_numpy(np.array(words).view(np.uint8).reshape(len(x), -1).copy())
        each = (data[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
        each = each.reshape(*x.shape, bits).int() << torch.arange(bits)
        return each.sum(-1).to(torch.uint8)

    for bits in (2, 3, 4, 5, 6, 8):
        words, scale, bias = mx.quantize(own, group_size=64, bits=bits)
        parts = {"scale": scale, "offset": bias}
        yield (
            f"affine{bits}",
            {
                "codes": unpacked(words, bits),
                **{
                    part: torch.from_numpy(np.array(each.astype(mx.float32))).to(x.dtype)
                    for part, each in parts.items()
                },
            },
        )
    if x.dtype == torch.float32:
        for mode, bits, size in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
            words, scale = mx.quantize(own, group_size=size, bits=bits, mode=mode)
            stored = torch.from_numpy(np.array(scale))
            yield mode, {"codes": unpacked(words, bits), "scale": stored}


def modelopt(x: Tensor) -> Made:
    from modelopt.torch.quantization.qtensor import (
        FP8QTensor,
        MXFP4QTensor,
        MXFP8QTensor,
        NVFP4QTensor,
    )

    def nibbles(packed: Tensor) -> Tensor:
        return torch.stack([packed & 15, packed >> 4], -1).reshape(x.shape)

    q, scale, outer = NVFP4QTensor.quantize(x.clone(), 16)
    yield (
        "nvfp4",
        {
            "codes": nibbles(q._quantized_data),
            "scale": scale.view(torch.uint8),
            "outer": outer.reshape(1, 1),
        },
    )
    q, scale = MXFP4QTensor.quantize(x.clone(), 32)
    yield "mxfp4", {"codes": nibbles(q._quantized_data), "scale": scale.reshape(len(x), -1)}
    q, scale = MXFP8QTensor.quantize(x.clone())
    yield "mxfp8", {"codes": q._quantized_data.view(torch.uint8), "scale": scale}
    q, scale = FP8QTensor.quantize(x.clone())
    yield "fp8", {"codes": q._quantized_data.view(torch.uint8), "scale": scale.reshape(1, 1)}


def hqq(x: Tensor) -> Made:
    from hqq.core.quantize import Quantizer

    if x.dtype != torch.float32:
        return
    for bits in (8, 4, 3, 2):
        codes, meta = Quantizer.quantize(
            x, bits, group_size=64, optimize=False, axis=1, bitpack=False, device="cpu"
        )
        shape = (len(x), -1)
        yield (
            f"uint{bits}_rtn",
            {
                "codes": codes.to(torch.uint8).reshape(x.shape),
                "scale": meta["scale"].float().reshape(shape),
                "zero_point": meta["zero"].float().reshape(shape),
            },
        )
        codes, meta = Quantizer.quantize(
            x, bits, group_size=64, optimize=True, axis=1, bitpack=False, device="cpu"
        )
        yield (
            f"uint{bits}",
            {
                "codes": codes.to(torch.uint8).reshape(x.shape),
                "scale": meta["scale"].float().reshape(shape),
                "zero_point": meta["zero"].float().reshape(shape),
            },
        )


def nncf(x: Tensor) -> Made:
    import nncf
    import openvino as ov
    from openvino import opset13 as ops

    if x.dtype != torch.float32:
        return
    modes = nncf.CompressWeightsMode
    names = ("int8_sym", "int8_asym", "int4_sym", "int4_asym", "nf4", "fp4", "fp8_e4m3", "nvfp4")
    for name in names:
        given = ops.parameter([2, COLUMNS], np.float32)
        weight = ops.constant(np.tile(x.numpy(), (8, 1)), name="w")  # 10,000 numbers and more
        product = ops.matmul(given, weight, False, True)
        more = {"ratio": 1.0, "all_layers": True, "group_size": 16 if name == "nvfp4" else 64}
        model = nncf.compress_weights(
            ov.Model([ops.result(product)], [given]),
            mode=modes(name),
            **({} if name.startswith("int8") else more),
        )
        made = {op.get_friendly_name(): op for op in model.get_ops()
                if op.get_type_name() == "Constant"}  # fmt: skip
        parts = {"codes": openvino_codes(made["w"])[: x.numel()].reshape(x.shape)}
        scale = torch.from_numpy(np.array(made["w/scale"].data)).flatten()
        if name == "nvfp4":
            outer = float(made["w/second_order_scale"].data.reshape(()))
            inner = parse("e4m3:tensor:fp32").element
            scale = (inner.decode(scale.view(torch.uint8)) * outer).half()
        parts["scale"] = scale[: len(scale) // 8].reshape(len(x), -1)
        if "w/zero_point" in made:
            zero = openvino_codes(made["w/zero_point"]).int()
            parts["zero_point"] = zero[: len(zero) // 8].reshape(len(x), -1)
        yield name, parts


def openvino_codes(constant: Any) -> Tensor:
    """The codes of a constant of OpenVINO, flat: four bits lie low first."""
    data = torch.from_numpy(np.array(constant.data)).flatten()
    kind = constant.get_element_type().get_type_name()
    if kind in ("u8", "i8", "f8e4m3"):
        return data.view(torch.uint8) if kind == "f8e4m3" else data
    data = data.view(torch.uint8)
    each = torch.stack([data & 15, data >> 4], -1).flatten()
    return ((each ^ 8).to(torch.int8) - 8) if kind == "i4" else each


def dmx(x: Tensor) -> Made:
    """`values` are what its formats cast to: it has no codes."""
    if x.dtype != torch.float32:  # to which it casts all
        return
    [folder] = [
        p for p in (pathlib.Path(each) / "dmx/compressor" for each in sys.path) if p.is_dir()
    ]
    for name in ("dmx", "dmx.compressor"):  # without what else these import
        sys.modules.setdefault(name, types.ModuleType(name)).__path__ = [
            str(folder if name.endswith("compressor") else folder.parent)
        ]
    form = importlib.import_module("dmx.compressor.numerical.format").Format.from_shorthand
    names = {f"bfp{bits + 8}": f"BFP[{bits}|8]{{64}}(SN)" for bits in (16, 8, 6, 4)}
    names |= {f"bfp{bits + 8}a": f"BFP[{bits}|8]{{64}}(_N)" for bits in (8, 6, 4)}
    names |= {f"mxint{bits}": f"MXINT{bits}{{32}}" for bits in (8, 6, 4)}
    for element in ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"):
        bits = 1 + int(element[1]) + int(element[3])
        names[f"mxfp{bits}_{element}"] = f"MXFP{bits}[{element.upper()}]{{32}}"
    for name, spelling in names.items():
        yield name, {"values": small(form(spelling).cast(x, -1))}


def microxcaling(x: Tensor) -> Made:
    """`values` are what it rounds to: it has no codes."""
    if x.dtype == torch.float16:
        return
    mx = importlib.import_module("mx.mx_ops")
    for name in (
        "fp8_e4m3",
        "fp8_e5m2",
        "fp6_e3m2",
        "fp6_e2m3",
        "fp4_e2m1",
        "int8",
        "int4",
        "int2",
    ):
        for mode, ending in (("nearest", ""), ("even", "_even"), ("floor", "_floor")):
            values = mx._quantize_mx(x.clone(), 8, name, axes=[-1], block_size=32, round=mode)
            if mode == "nearest" or x.dtype == torch.float32:
                yield name + ending, {"values": small(values)}


def small(values: Tensor) -> Tensor:
    """The same numbers as bfloat16, if it has them."""
    half = values.bfloat16()
    return half if torch.equal(half.float(), values.float()) else values


PRODUCERS = {
    each.__name__: each
    for each in (
        bnb,
        quanto,
        gptq,
        awq,
        onnxruntime,
        compressed_tensors,
        mlx,
        modelopt,
        hqq,
        nncf,
        dmx,
        microxcaling,
    )
}


def main() -> None:
    for name in sys.argv[1:] or PRODUCERS:
        torch.manual_seed(12)
        tensors: dict[str, Tensor] = {}
        for kind in KINDS:
            x = some_rows(kind, COLUMNS)
            tensors[f"x.{kind}"] = x
            for dtype, own in DTYPES.items():
                for profile, parts in PRODUCERS[name](x.to(own)):
                    for part, each in parts.items():
                        tensors[f"{profile}.{dtype}.{kind}.{part}"] = each.contiguous().clone()
        save_file(tensors, HERE / f"profiles_{name}.safetensors")


if __name__ == "__main__":
    main()
