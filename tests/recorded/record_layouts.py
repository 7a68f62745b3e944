# SPDX-License-Identifier: BSD-3-Clause
"""Record what producers store in safetensors files, and what their own dequantizers make of it.

    pip install --target /tmp/oracles --no-deps bitsandbytes==0.50.2 hqq==0.2.8.post1 termcolor \
        tqdm optimum-quanto==0.2.7 mlx==0.32.4 mlx-cpu==0.32.4 auto-gptq==0.7.1
    pip download --no-deps autoawq==0.2.9    # and unpack it into /tmp/oracles/autoawq-0.2.9
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_layouts.py [bitsandbytes hqq …]

Writes layouts_PRODUCER.safetensors beside this file. A case has CASE|stored|NAME, the tensors of
its file, and CASE|values|NAME, what the producer's dequantizer gives; the metadata have CASE, its
configuration as JSON. Some hold what the producer quantized (the five kinds of numbers of
tests/support/profile_inputs.py), others random bytes as codes and random scales.
"""

import importlib
import json
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.profile_inputs import KINDS

HERE = pathlib.Path(__file__).parent
FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Case = tuple[str, dict[str, Tensor], Tensor, dict[str, Any]]  # name, stored, values, configuration


def rows(kind: str, count: int = 16, columns: int = 128) -> Tensor:
    """Rows from all over the input, of which the first are odd in `mixed`."""
    x = KINDS[kind]()
    first = x[:count] if kind == "mixed" else x[:: len(x) // count][:count]
    return first[:, :columns].contiguous()


def any_bytes(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
    width = torch.empty((), dtype=dtype).element_size()
    size = (*shape[:-1], shape[-1] * width)
    return torch.randint(0, 256, size, dtype=torch.uint8).view(dtype)


def any_scales(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Of either sign, over many magnitudes, 0 among them."""
    scale = torch.randn(shape) * torch.randint(-12, 5, shape).float().exp2()
    scale.view(-1)[0], scale.view(-1)[-1] = 0.0, 2.0**-24
    return scale.to(dtype)


def submodule(package: str, folder: pathlib.Path, name: str) -> Any:
    """package.name without running the package's own __init__, which wants much else."""
    for depth in range(1, len(parts := f"{package}.{name}".split("."))):
        path = folder.joinpath(*parts[1:depth])
        module = types.ModuleType(".".join(parts[:depth]))
        module.__path__ = [str(path)]
        sys.modules[module.__name__] = module
    return importlib.import_module(f"{package}.{name}")


def found(package: str, inside: str = "") -> pathlib.Path:
    for place in map(pathlib.Path, sys.path):
        if (place / inside / package).is_dir():
            return place / inside / package
    raise FileNotFoundError(package)


def gptq() -> Iterator[Case]:
    """AutoGPTQ's own unpacking, which is inside of forward: its product gives the matrix back."""
    qlinear = "nn_modules.qlinear."
    old = submodule("auto_gptq", found("auto_gptq"), f"{qlinear}qlinear_cuda_old").QuantLinear
    new = submodule("auto_gptq", found("auto_gptq"), f"{qlinear}qlinear_cuda").QuantLinear
    inputs, outputs, group = 128, 32, 32
    matmul = torch.matmul
    for bits, of, name in ((2, old, ""), (3, old, ""), (4, old, ""), (8, old, ""), (4, new, "act")):
        layer = of(bits, group, inputs, outputs, False, use_cuda_fp16=False) if of is old else of(
            bits, group, inputs, outputs, False
        )  # fmt: skip
        layer.qweight = any_bytes((inputs * bits // 32, outputs), torch.int32)
        layer.qzeros = any_bytes((inputs // group, outputs * bits // 32), torch.int32)
        layer.scales = any_scales((inputs // group, outputs), torch.float16)
        if name:  # this one takes a stored 15 for 16, and the others for 0: there is none here
            layer.g_idx = layer.g_idx[torch.randperm(inputs)]
            layer.qzeros &= 0x77777777
        seen: list[Tensor] = []
        torch.matmul = lambda x, w, seen=seen: seen.append(w) or matmul(x, w)
        try:
            layer(torch.zeros(1, inputs, dtype=torch.float16))
        finally:
            torch.matmul = matmul
        values = seen[0].reshape(inputs, outputs).T
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": False}
        parts = {each: getattr(layer, each) for each in ("qweight", "qzeros", "scales", "g_idx")}
        told = {"desc_act": bool(name), "checkpoint_format": "gptq"}
        yield f"{bits}{name}", {f"a.{n}": t for n, t in parts.items()}, values, config | told


def awq() -> Iterator[Case]:
    unpack = submodule("awq", found("awq", "autoawq-0.2.9"), "utils.packing_utils")
    stored = {
        "a.qweight": any_bytes((128, 4), torch.int32), "a.qzeros": any_bytes((4, 4), torch.int32),
        "a.scales": any_scales((4, 32), torch.float16),
    }  # fmt: skip
    values = unpack.dequantize_gemm(
        stored["a.qweight"], stored["a.qzeros"], stored["a.scales"], 4, 32
    )
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    yield "gemm", stored, values.T, config | {"version": "gemm"}
    gemv = submodule("awq", found("awq", "autoawq-0.2.9"), "modules.linear.gemv").WQLinear_GEMV
    linear = torch.nn.Linear(128, 32, bias=False, dtype=torch.float16)
    codes, zeros = torch.randint(0, 16, (32, 128)), torch.randint(0, 16, (32, 2))
    scales = (any_scales((32, 2)).abs() + 0.01).half()
    linear.weight.data = (codes - zeros.repeat_interleave(64, 1)) * scales.repeat_interleave(64, 1)
    layer = gemv.from_linear(linear, 4, 64, scales=scales, zeros=zeros)
    parts = {f"a.{n}": getattr(layer, n) for n in ("qweight", "qzeros", "scales")}
    yield "gemv", parts, linear.weight.data, config | {"version": "gemv", "group_size": 64}


def bitsandbytes() -> Iterator[Case]:
    import bitsandbytes.functional as F

    def four(name: str, x: Tensor, block: int, nested: bool, dtype: Any, any_of_it: bool) -> Case:
        packed, state = F.quantize_4bit(
            x.flatten(), quant_type=name, blocksize=block, compress_statistics=nested
        )
        state.shape, state.dtype = x.shape, dtype
        if any_of_it:
            packed = any_bytes(tuple(packed.shape))
            if nested:
                state.absmax = any_bytes(tuple(state.absmax.shape))
                state.state2.absmax = any_scales(tuple(state.state2.absmax.shape)).abs()
            else:
                state.absmax = any_scales(tuple(state.absmax.shape))
        stored = {f"a.weight.{n}": t for n, t in state.as_dict(packed=True).items()}
        flat = torch.Size([x.numel()])  # its CPU kernel takes wrong scales for blocks across rows
        state.shape = flat
        values = F.dequantize_4bit(packed.reshape(-1, 1), state).reshape(x.shape)
        return "", stored | {"a.weight": packed.reshape(-1, 1)}, values, {}

    for name in ("nf4", "fp4"):
        for kind in KINDS:
            _, *case = four(name, rows(kind, 8, 128), 64, True, torch.float32, False)
            yield f"{name} {kind}", *case
        for block, nested, dtype in ((64, False, "bf16"), (128, True, "fp16"), (64, True, "fp32")):
            x = torch.randn(9, 72) if block == 64 else torch.randn(4, 3, 64)
            _, *case = four(name, x, block, nested, FLOATS[dtype], True)
            yield f"{name} bytes {block} {nested} {dtype}", *case
    _, *case = four("nf4", torch.randn(5, 51), 64, False, torch.float32, True)
    yield "nf4 odd", *case
    _, stored, *case = four("nf4", torch.randn(8, 64), 64, False, torch.bfloat16, True)
    stored["a.weight"] = stored["a.weight"].reshape(-1).view(torch.bfloat16).reshape(-1, 1)
    yield "nf4 kept as bf16", stored, *case
    for kind in (*KINDS, "bytes"):
        x = torch.randn(16, 128) if kind == "bytes" else rows(kind)
        codes, scb, _ = F.int8_vectorwise_quant(x.half())
        if kind == "bytes":
            codes, scb = any_bytes((16, 128), torch.int8), any_scales((16,))
        stored = {
            "a.weight": codes,
            "a.SCB": scb,
            "a.weight_format": torch.tensor(0, dtype=torch.uint8),
        }
        yield f"int8 {kind}", stored, F.int8_vectorwise_dequant(codes, scb), {}


def hqq() -> Iterator[Case]:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    def one(x: Tensor, bits: int, axis: int, group: int, dtype: Any, any_of_it: bool) -> Case:
        linear = torch.nn.Linear(x.shape[1], x.shape[0], bias=False)
        linear.weight.data = x.clone()
        config = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
        layer = HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
        if any_of_it:
            layer.W_q.data = any_bytes(tuple(layer.W_q.shape), layer.W_q.dtype)
            shape = tuple(layer.meta["scale"].shape)
            layer.meta["scale"], zero = any_scales(shape, dtype), torch.rand(shape) * 2**bits
            layer.meta["zero"] = zero.to(dtype)
        values = layer.dequantize()
        stored = {f"a.{n}": t for n, t in layer.state_dict().items() if isinstance(t, Tensor)}
        return "", stored, values, {"quant_method": "hqq"}

    for kind in KINDS:
        _, *case = one(rows(kind), 4, 1, 64, torch.float32, False)
        yield f"4 {kind}", *case
    for bits in (8, 4, 3, 2, 1):
        for axis in (0, 1):
            for dtype in ("fp32", "fp16", "bf16") if bits == 4 else ("fp16",):
                x = torch.randn(24, 128) if bits != 3 else torch.randn(24, 96)
                _, *case = one(x, bits, axis, 32 if bits == 3 else 64, FLOATS[dtype], True)
                yield f"{bits} axis {axis} {dtype}", *case
    _, *case = one(torch.randn(16, 48), 4, 1, 64, torch.float16, True)
    yield "4 across rows", *case


def quanto() -> Iterator[Case]:
    from optimum import quanto

    def one(x: Tensor, kind: str, any_of_it: bool, bias: bool = True) -> Case:
        linear = torch.nn.Linear(x.shape[1], x.shape[0], bias=bias, dtype=x.dtype)
        linear.weight.data = x.clone()
        model = torch.nn.ModuleDict({"a": linear})
        quanto.quantize(model, weights=getattr(quanto, kind))
        quanto.freeze(model)
        weight = model["a"].weight
        if "TinyGemm" in type(weight).__name__:  # rearranged for this processor
            weight = weight.weight_qbits_tensor()
            model["a"].weight = torch.nn.Parameter(weight, requires_grad=False)
            weight = model["a"].weight
        if any_of_it:
            weight._scale = any_scales(tuple(weight._scale.shape), x.dtype)
            if hasattr(weight, "_shift"):
                weight._shift = any_scales(tuple(weight._shift.shape), x.dtype)
                weight._data._data = any_bytes(tuple(weight._data._data.shape))
            elif weight._data.dtype == torch.int8:
                weight._data = any_bytes(tuple(weight._data.shape), torch.int8)
            else:
                weight._data = any_bytes(tuple(weight._data.shape)).view(weight._data.dtype)
        stored = {n: t.clone() for n, t in model.state_dict().items()}
        config = {"quant_method": "quanto", "modules": quanto.quantization_map(model)}
        return "", stored, weight.dequantize(), config

    for kind in KINDS:
        _, *case = one(rows(kind), "qint4", False)
        yield f"qint4 {kind}", *case
    for kind in ("qint4", "qint2", "qint8", "qfloat8_e4m3fn", "qfloat8_e5m2"):
        for dtype in FLOATS:
            _, *case = one(torch.randn(16, 256).to(FLOATS[dtype]), kind, True)
            yield f"{kind} bytes {dtype}", *case
    _, *case = one(torch.randn(6, 96), "qint4", False, bias=False)
    yield "qint4 without bias", *case


def mlx() -> Iterator[Case]:  # noqa: C901
    import mlx.core as mx

    def to_torch(a: Any) -> Tensor:
        names = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
        if a.dtype in names:
            whole = torch.tensor(a.astype(mx.float32).tolist(), dtype=torch.float32)
            return whole.to(getattr(torch, names[a.dtype]))
        numbers = torch.tensor(a.tolist(), dtype=torch.int64)
        return numbers.to(torch.uint8 if a.dtype == mx.uint8 else torch.uint32)

    def to_mlx(t: Tensor) -> Any:
        if t.is_floating_point():
            names = {torch.float16: mx.float16, torch.bfloat16: mx.bfloat16}
            return mx.array(t.float().numpy()).astype(names.get(t.dtype, mx.float32))
        return mx.array(t.numpy())

    def one(parts: list[Any], **how: Any) -> Case:
        values = mx.dequantize(*parts, **how)
        stored = dict(zip(("a.weight", "a.scales", "a.biases"), map(to_torch, parts), strict=False))
        return "", stored, to_torch(values), {"mlx": how}

    for kind in KINDS:
        for dtype in FLOATS:
            x = to_mlx(rows(kind, 8, 128).to(FLOATS[dtype]))
            _, *case = one(list(mx.quantize(x, group_size=64, bits=4)), group_size=64, bits=4)
            yield f"4 {kind} {dtype}", *case
    for bits in (2, 3, 4, 5, 6, 8):
        for dtype in FLOATS if bits in (3, 8) else ("bf16",):
            words = to_mlx(any_bytes((8, 128 * bits // 32), torch.uint32))
            scales = [to_mlx(any_scales((8, 4), FLOATS[dtype])) for _ in "sb"]
            _, *case = one([words, *scales], group_size=32, bits=bits)
            yield f"{bits} bytes {dtype}", *case
    for mode, group, bits in (("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)):
        words = any_bytes((8, 128 * bits // 32), torch.uint32)
        if bits == 8:
            finite = words.view(torch.uint8)
            finite[(finite & 127) == 127] = 3  # its NaN is the number 480
        scales = any_bytes((8, 128 // group))
        scales = scales % 0x7F if mode == "nvfp4" else scales.clamp(1, 250)
        how = {"group_size": group, "bits": bits, "mode": mode}
        _, *case = one([to_mlx(words), to_mlx(scales)], **how)
        yield f"{mode} bytes", *case
        _, *case = one(list(mx.quantize(to_mlx(rows("mixed", 8)), **how)), **how)
        yield f"{mode} mixed", *case


PRODUCERS: dict[str, Callable[[], Iterator[Case]]] = {
    each.__name__: each for each in (gptq, awq, bitsandbytes, hqq, quanto, mlx)
}


def main() -> None:
    for producer in sys.argv[1:] or PRODUCERS:
        torch.manual_seed(22)
        tensors: dict[str, Tensor] = {}
        configs: dict[str, str] = {}
        for case, stored, values, config in PRODUCERS[producer]():
            tensors |= {f"{case}|stored|{n}": t.contiguous().clone() for n, t in stored.items()}
            tensors[f"{case}|values|a.weight"] = values.detach().contiguous().clone()
            configs[case] = json.dumps(config)
        save_file(tensors, HERE / f"layouts_{producer}.safetensors", configs)


if __name__ == "__main__":
    main()
