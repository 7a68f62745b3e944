# SPDX-License-Identifier: BSD-3-Clause
"""torchao: `Int8Tensor`, `Float8Tensor`, `IntxUnpackedToInt8Tensor`, `to_mx`, `nvfp4_quantize`.

As on its CPU; on CUDA, torch multiplies by reciprocals of Python numbers, so that its own scales
may be an ulp off. Sources, all of 0.18.0: quantization/quant_primitives.py
(`_choose_qparams_affine`, `_quantize_affine`, `_choose_scale_float8`),
prototype/mx_formats/mx_tensor.py (`to_mx`) and nvfp4_tensor.py (`nvfp4_quantize`).
"""

from collections.abc import Iterator

from blockscale.core.parse import parse
from blockscale.core.profiles.knobs import Profile

_VERSION = "0.18.0"
_FLOAT8 = {"float8": "e4m3", "float8_e5m2": "e5m2"}
_MX = {
    "mxfp8": "e4m3",
    "mxfp8_e5m2": "e5m2",
    "mxfp6": "e3m2",
    "mxfp6_e2m3": "e2m3",
    "mxfp4": "e2m1",
}
_BLOCKS = ("tensor", "channel", "token", "group", "tile", "block")


def _integers() -> Iterator[Profile]:
    """Scales by the tensor's arithmetic; `Int8Tensor` stores them as float32, with its eps."""
    int8 = {"scale_arithmetic": "input", "least": 2.0**-23, "reciprocal": True}
    intx = {
        "scale_type": "input",
        "scale_arithmetic": "input",
        "code_arithmetic": "input",
        "least": "normal",
        "reciprocal": True,
    }
    yield _profile("int8", "int8:channel0:fp32:full", _BLOCKS, levels=127.5, **int8)
    yield _profile("int8_asym", "int8:token:fp32:asym", _BLOCKS, **int8)
    for bits in range(2, 9):
        spelling, half = f"int{bits}:group32:fp32", 2.0 ** (bits - 1) - 0.5
        yield _profile(f"intx{bits}", f"{spelling}:full", _BLOCKS, levels=half, **intx)
        yield _profile(f"intx{bits}_no_clipping", f"{spelling}:full", _BLOCKS, **intx)
        yield _profile(f"intx{bits}_asym", f"{spelling}:asym", _BLOCKS, **intx)


def _floats() -> Iterator[Profile]:
    """Zero rows have a scale of 0 and NaN codes; torchao 0.18.0 has no minimum."""
    for name, element in _FLOAT8.items():
        yield _profile(
            name, f"{element}:channel0:fp32", _BLOCKS, scale_arithmetic="input", least=0.0
        )


def _microscaling() -> Iterator[Profile]:
    """`floor` is torchao's default. A block of byte 0 is divided by 2^-126, or 1 under rceil."""
    for name, element in _MX.items():
        for rule in ("floor", "ceil", "even", "rceil"):
            ending = "" if rule == "floor" else f"_{rule}"
            yield _profile(
                name + ending,
                f"{element}:group32:e8m0/{rule}",
                ("group",),
                logarithm=rule == "rceil",
                smallest_divisor=1.0 if rule == "rceil" else 2.0**-126,
            )
    yield _profile("nvfp4", "e2m1:group16:e4m3", reciprocal=True)
    yield _profile("nvfp4_one_level", "e2m1:group16:e4m3", reciprocal=True, outer=1.0)


def _profile(name: str, spelling: str, blocks: tuple[str, ...] = (), **rules: object) -> Profile:
    return Profile(
        name=f"torchao.{name}",
        version=_VERSION,
        format=parse(spelling),
        blocks=blocks,
        whole_blocks=True,
        **rules,  # type: ignore[arg-type]
    )


PROFILES = (*_integers(), *_floats(), *_microscaling())
