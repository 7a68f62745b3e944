"""ggml's quantizers, those of llama.cpp and the gguf package, without an importance matrix.

Source: ggml-quants.c (commit d99724f2), `ggml_quantize_chunk`. Versions are those of gguf. Where a
compiler fuses multiplications and additions (blockscale.core.profiles.encoders.compiled), ggml's
own bytes of q2_k to q6_k, iq4_nl and iq4_xs differ from these.
"""

from collections.abc import Iterator

from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import ggml_simple
from blockscale.core.profiles.encoders.ggml_iq4 import IQ4
from blockscale.core.profiles.encoders.ggml_k import KType
from blockscale.core.profiles.encoders.ggml_search import Trials
from blockscale.core.profiles.knobs import Profile

_VERSION = "0.19.0"
_ROWS = {"q1_0": 128, "q2_0": 64, "tq1_0": 256, "tq2_0": 256, "nvfp4": 64, "iq4_xs": 256} | (
    dict.fromkeys(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"), 256)
)
# llama-quantize's types for rows that are no whole blocks of 256 (llama-quant.cpp)
_FALLBACKS = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    "tq1_0": "q4_0", "tq2_0": "q4_0", "q2_0": "q4_0", "iq4_xs": "iq4_nl",
}  # fmt: skip
_SIX = "(uint6:group8:fp16):offset(uint6:group8:fp16)"
# name: (format, the largest code of a scale, the search where there are minimums)
_K_TYPES = {
    "q2_k": (
        "uint2:group16:(uint4:group16:fp16):offset(uint4:group16:fp16)",
        15,
        Trials(3, -0.5, 0.1, 15, absolute=True),
    ),
    "q3_k": ("int3:group16:(int6:group16:fp16)", 32, None),
    "q4_k": (f"uint4:group32:{_SIX}", 63, Trials(15, -1.0, 0.1, 20, absolute=False)),
    "q5_k": (f"uint5:group32:{_SIX}", 63, Trials(31, -0.5, 0.1, 15, absolute=False)),
    "q6_k": ("int6:group16:(int8:group16:fp16)", 128, None),
}


_UNROUNDED = {"least": 0.0, "before_cast": True, "reciprocal": True}
_FROM_LARGEST = {"sign": "largest", "search": "half_up_add", **_UNROUNDED}


def _ruled() -> Iterator[Profile]:
    yield _profile(
        "q8_0", "int8:group32:fp16:full", levels=127.0, search="nearest_away", **_UNROUNDED
    )
    yield _profile("q4_0", "int4:group32:fp16:full", levels=-8.0, **_FROM_LARGEST)
    yield _profile("q5_0", "int5:group32:fp16:full", levels=-16.0, **_FROM_LARGEST)
    for name, spelling, encoder in (
        ("q4_1", "uint4:group32:fp16:offset", ggml_simple.with_minimum),
        ("q5_1", "uint5:group32:fp16:offset", ggml_simple.with_minimum),
        ("q1_0", "binary:group128:fp16", ggml_simple.signs),
        ("q2_0", "uint2:group64:fp16:asym", ggml_simple.ternary),
        ("tq1_0", "ternary:group256:fp16", ggml_simple.ternary),
        ("tq2_0", "ternary:group256:fp16", ggml_simple.ternary),
        ("mxfp4", "e2m1:group32:e8m0/given", ggml_simple.mxfp4),
        ("nvfp4", "e2m1:group16:e4m3", ggml_simple.nvfp4),
    ):
        yield _profile(name, spelling, encoder=encoder)


def _searched() -> Iterator[Profile]:
    for name, (spelling, levels, trials) in _K_TYPES.items():
        yield _profile(name, spelling, encoder=KType(levels, trials))
    yield _profile("iq4_nl", "iq4_nl:group32:fp16", encoder=IQ4())
    yield _profile("iq4_xs", "iq4_nl:group32:(int6:group8:fp16)", encoder=IQ4())


def _profile(name: str, spelling: str, **rules: object) -> Profile:
    return Profile(
        name=f"gguf.{name}",
        version=_VERSION,
        format=parse(spelling),
        multiple=_ROWS.get(name, 32),
        fallback=f"gguf.{_FALLBACKS[name]}" if name in _FALLBACKS else "",
        **rules,  # type: ignore[arg-type]
    )


PROFILES = (*_ruled(), *_searched())
