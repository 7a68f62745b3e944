# SPDX-License-Identifier: BSD-3-Clause
"""Products of 8-bit integers by oneDNN, as torch has it: `blockscale::onednn_linear`.

The op takes what `fused_linear` takes. Its sums are the exact integers; then, in float32,

    y = sum * (x_scale * weight_scale) + bias        within the ulps of fused_linear
    codes = round(activation(y) / y_scale) + zero    at most one code from the reference's

because oneDNN multiplies by reciprocals and has a gelu of its own. Activations go in as uint8:
torch 2.13's oneDNN has no fast kernel for int8 ones on processors with VNNI and without AMX (1000
times slower), so int8 codes are moved up by 128, and their zero point with them, which changes no
sum.
"""

import platform
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale
from blockscale.core.torch_private import aoti_package, inductor_config, is_vnni_supported
from blockscale.graph.pickled import state
from blockscale.graph.program import exported
from blockscale.kernels.resident import Residents
from blockscale.ops.fused import FUSED
from blockscale.ops.op import LIBRARY

# Compiling graphs that were lowered to "inductor".

OPTIONS: dict[str, Any] = {"emulate_precision_casts": True}


def compiled(graph: fx.GraphModule, **options: Any) -> Callable[..., Any]:
    """torch.compile of a graph lowered to "inductor", keeping every rounding to 16 bits.

    options: further ones of Inductor
    By default Inductor keeps the float32 number where a graph rounds to bfloat16 or float16 and
    goes on, so that plain torch.compile changes bits of models in 16 bits and under 16-bit scales.
    Everything else has the same bits either way.

    Raises ValueError for a graph that was not lowered to "inductor". Warns where Inductor freezes:
    it then computes the weights beforehand, and the program holds them as floats.
    """
    _check(graph)
    return torch.compile(graph, options=OPTIONS | options)


def package(graph: fx.GraphModule, path: str | Path, **options: Any) -> Path:
    """Compile a graph lowered to "inductor" ahead of time and write the package (`.pt2`).

    options: as in `compiled`
    `torch._inductor.aoti_load_package(path)` reads it, in processes without blockscale too; a C++
    compiler is needed here. Returns the path. Raises ValueError as `compiled`, where ops of
    ours are left in the graph and for a path where no such file can be; torch's errors where
    compiling fails.
    """
    _check(graph)
    path = _check_place(Path(path))
    ours = sorted({n.name for n in graph.graph.nodes if str(n.target).startswith("blockscale.")})
    if ours:
        raise ValueError(
            f"{', '.join(ours)} stayed on the reference, whose Python ops a package cannot "
            "hold: see the graph's ledger, and use formats that can be traced"
        )
    program = exported(graph)
    with torch.no_grad():
        result = aoti_package(program, str(path), OPTIONS | options)
    return Path(result)


def _check_place(path: Path) -> Path:
    """The path, if a package can be written there; compiling takes long before torch says no."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a directory: name the file to write, e.g. {path / 'model.pt2'}"
        )
    if path.suffix != ".pt2":
        expected = path.with_suffix(".pt2")
        raise ValueError(f"{path}: the name of a package must end in .pt2: write it to {expected}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory: create it first")
    return path


def _check(graph: fx.GraphModule) -> None:
    info = state(graph)
    if info.target != "inductor":
        raise ValueError(
            f"expected a graph lowered to 'inductor', found one of stage {info.stage!r}"
            + (f" for {info.target!r}" if info.target else "")
            + ": pass bs.graph.lower(graph, 'inductor')"
        )
    if inductor_config().freezing:
        warnings.warn(
            "Inductor is set to freeze: it decodes the weights while it compiles, and the program "
            "will hold them as floats; set torch._inductor.config.freezing = False to keep codes",
            stacklevel=3,
        )


_POST_OPS = {"": ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"),
             "gelu_tanh": ("gelu", "tanh")}  # fmt: skip


@cache
def unavailable() -> str | None:
    """Why oneDNN's products of 8 bits do not run here, or None if they do."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"its products need x86-64, and this is a {platform.machine()}"
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    if not is_vnni_supported():
        return "this processor has no VNNI, without which its products saturate at 16 bits"
    return None


def refuses(x: str, weight: str, activation: str, y: str, static: bool) -> str | None:
    """Why a product of these formats cannot be oneDNN's, or None.

    x, y: spellings of formats, empty for floats; weight: of a weight [n, k]
    static: whether the result's scale is there beforehand
    """
    if not x or not _per_tensor(parse(x)):
        return f"oneDNN needs activations of 8 bits with one scale, not {x or 'floats'}"
    if not weight or not _weight(parse(weight)):
        return f"oneDNN needs int8 weights with one scale per row, not {weight or 'floats'}"
    if activation not in _POST_OPS:
        return f"oneDNN cannot fuse {activation}"
    if y and not (_per_tensor(parse(y)) and static):
        return f"oneDNN returns floats, or 8 bits with one static scale, not {y}"
    return None


def _eight_bits(form: Format) -> bool:
    """Whether its codes are integers of 8 bits and its steps floats as stored."""
    plain = isinstance(form.element, Integer) and isinstance(form.scale, FloatScale)
    offset = form.offset is None and form.zero is None
    return plain and offset and form.element.bits == 8


def _per_tensor(form: Format) -> bool:
    return _eight_bits(form) and form.block.name == "tensor" and form.rounding == "nearest_even"


def _weight(form: Format) -> bool:
    symmetric = not form.asym and form.element.signed
    return _eight_bits(form) and symmetric and form.block.name in ("tensor", "channel0", "token")


class _Packed(NamedTuple):
    """codes: as oneDNN lays them out; scale: float32 [n]; zero: int32 [n], all 0."""

    codes: Tensor
    scale: Tensor
    zero: Tensor


def _pack(weight: Operand) -> _Packed:
    n = weight.codes.shape[0]
    scale = weight.scale.to(torch.float32).reshape(-1).expand(n).contiguous()
    codes = torch.ops.onednn.qlinear_prepack(weight.codes.contiguous(), None)
    return _Packed(codes, scale, torch.zeros(n, dtype=torch.int32))


def _fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes."""
    return zlib.crc32(part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


_PACKED = Residents(_pack, _fingerprint)


def linear(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As `fused_linear`. Raises ValueError for formats that oneDNN does not take."""
    reason = refuses(x.fmt, weight.fmt, activation, y.fmt, y.scale is not None)
    if reason is not None:
        raise ValueError(f"onednn_linear: {reason}")
    assert x.scale is not None
    if not x.data.numel():  # oneDNN loses sizes of 0
        result: list[Tensor] = FUSED["linear"].op.run(x, weight, bias, activation, dtype, y)
        return result
    packed = _PACKED[weight.operand]
    codes, zero = _unsigned(x)
    offset = None if bias is None else bias.to(torch.float32)
    scale, zero_y, kind = _result(y)
    output = torch.ops.onednn.qlinear_pointwise(
        codes, float(x.scale), zero, packed.codes, packed.scale, packed.zero, offset,
        scale, zero_y, kind, _POST_OPS[activation][0], [], _POST_OPS[activation][1],
    )  # fmt: skip
    if not y.fmt:
        return [output.to(dtype)]
    return [output if kind == torch.uint8 or y.format.wide else output.clamp_(min=-127)]


def _unsigned(x: Value) -> tuple[Tensor, int]:
    """Codes as uint8, and the code that stands for 0."""
    zero = 0 if x.zero_point is None else int(x.zero_point)
    if x.data.dtype == torch.uint8:
        return x.data.contiguous(), zero
    return x.data.contiguous().view(torch.uint8) ^ 128, zero + 128


def _result(y: Quantizer) -> tuple[float, int, torch.dtype]:
    """The result's scale, zero point and dtype, as oneDNN takes them."""
    if y.scale is None:
        return 1.0, 0, torch.float32
    kind = torch.int8 if y.format.element.signed else torch.uint8
    return float(y.scale), 0 if y.zero_point is None else int(y.zero_point), kind


def _register(name: str, like: str, run: Any) -> Any:
    """Make `run` the torch op `blockscale::<name>`, of the schema and shapes of a fused op."""
    op = FUSED[like].op
    schema = str(op.overload._schema).removeprefix(f"blockscale::{op.name}")

    def run_flat(*flat: Any) -> Any:
        return run(*op.signature.bind(*flat))

    def shape(*flat: Any, **by_name: Any) -> Any:
        return op.overload(*flat, **by_name)

    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run_flat, "CompositeExplicitAutograd")
    torch.library.register_fake(f"blockscale::{name}", shape, lib=LIBRARY)
    return getattr(torch.ops.blockscale, name).default


LINEAR = _register("onednn_linear", "linear", linear)
