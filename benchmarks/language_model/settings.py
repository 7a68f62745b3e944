# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: formats, algorithms and input formats, the most asked for first."""

from collections.abc import Iterator
from dataclasses import dataclass

import blockscale as bs
from blockscale.calibration.algorithms import weight_names


@dataclass(frozen=True)
class Setting:
    """One cell: who quantizes, and to what. `input` None leaves layers' inputs in float, `cache`
    None keys and values; with a cache, FLOAT_WEIGHTS may stand for the weights."""

    by: str
    weight: str
    algorithm: str
    input: str | None = None
    transform: str | None = None
    cache: str | None = None

    @property
    def name(self) -> str:
        """A key, and what --only is compared with."""
        parts = [self.weight, f"x {self.input}" if self.input else "", self.algorithm]
        kept = f"cache {self.cache}" if self.cache else ""
        return " ".join(filter(None, [f"{self.by}:", *parts, self.transform or "", kept]))


FLOAT_WEIGHTS = "float"
PLAIN = ("absmax", "mse", "search", "hqq")  # from the weight alone
LEARNED = ("gptq", "signround")  # from the inputs
# Beside the catalogue's: small groups, scales of 16 bits, 3 bits.
MORE = (
    "int4:group32:fp32", "int4:group32:fp16", "uint4:group32:fp16:asym", "int4:group64:fp32",
    "int3:group64:fp32", "int3:group64:fp16", "int3:group32:fp16", "int2:group32:fp16",
    "uint2:group32:fp16:asym", "uint3:group64:fp16:asym", "nf4:group64:fp16",
    "ternary:group64:fp16",
    "int5:group32:fp16", "int6:group32:fp16", "int4:group32:fp16:signed",
    "int3:group64:fp16:signed",
    "book4:group64:fp16", "book3:group64:fp16", "book2:group32:fp16",
)  # fmt: skip
WITH_INPUTS = (
    ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"), ("int8_channel", "int8_token"),
    ("int8_channel", "int8"), ("mxfp8", "mxfp8"), ("mxfp6", "mxfp6"), ("mxfp4", "mxfp8"),
    ("int4:group32:fp16", "int8_token"), ("int4:group32:fp32", "int4:group32:fp32"),
    ("bfp8", "bfp8"), ("mxint8", "mxint8"), ("fp8", "fp8"),
)  # fmt: skip
CACHES = (
    "int8_token", "mxfp8", "mxfp4", "nvfp4", "int4:group32:fp16", "uint4:group32:fp16:asym",
    "uint3:group32:fp16:asym", "uint2:group32:fp16:asym",
)  # fmt: skip
TOGETHER = (
    ("int8_channel", "int8_token", "int8_token"), ("mxfp8", "mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4", "nvfp4"),
)  # fmt: skip
FIRST = ("int4:group32:fp32", "int4:group32:fp16", "mxfp4", "nvfp4", "int3:group64:fp32")


def ours() -> Iterator[Setting]:
    """Every setting of blockscale, those of the headline formats first."""
    algorithms = ("absmax", *(a for a in (*PLAIN, *LEARNED) if a in weight_names()))
    weights = [*dict.fromkeys([*FIRST, *MORE, *bs.formats()])]
    pairs = list(WITH_INPUTS)
    for some, together in ((weights[: len(FIRST)], pairs[:2]), (weights[len(FIRST) :], pairs[2:])):
        for algorithm in algorithms:
            yield from (Setting("blockscale", weight, algorithm) for weight in some)
            yield from (Setting("blockscale", w, algorithm, i) for w, i in together)
    for algorithm in ("absmax", "gptq", "signround"):
        yield Setting("blockscale", "mxfp4", algorithm, "mxfp4", "hadamard:32")
    for transform in ("awq", "hadamard", "quarot"):
        for weight in ("int4:group32:fp32", "int4:group32:fp16"):
            yield Setting("blockscale", weight, "absmax", None, transform)
        for weight, given in (*pairs[:4], ("int4:group32:fp16", "int8_token")):
            yield Setting("blockscale", weight, "absmax", given, transform)
    for fmt in CACHES:
        yield Setting("blockscale", FLOAT_WEIGHTS, "", cache=fmt)
        if "group32" in str(bs.parse(fmt)):
            yield Setting("blockscale", FLOAT_WEIGHTS, "", cache=f"{fmt} keys per channel")
    for weight, given, kept in TOGETHER:
        yield Setting("blockscale", weight, "absmax", given, cache=kept)


def peers() -> Iterator[Setting]:
    """Every setting of others."""
    for steps in ("200 steps", "0 steps"):
        for bits in ("W4A16 group32", "W4A16 group32 asym", "W3A16 group64", "W2A16 group32"):
            yield Setting("auto-round", bits, steps)
        for scheme in ("MXFP4", "NVFP4"):
            yield Setting("auto-round", scheme, steps, scheme)
    for kind in ("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL",
                 "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "MXFP4", "TQ2_0"):  # fmt: skip
        for algorithm in ("plain", "imatrix"):
            if (kind, algorithm) not in NO_SUCH:
                yield Setting("gguf", kind, algorithm)
    for bits in ("int4", "int3", "int2"):
        for group in (32, 64):
            for algorithm in ("affine", "hqq"):
                yield Setting("torchao", f"{bits} group{group}", algorithm)


# These look at no importance, or (the second line) are made for it and are poor without.
NO_SUCH = {("Q8_0", "imatrix"), ("MXFP4", "imatrix"), ("TQ2_0", "imatrix"),
           ("IQ2_S", "plain")}  # fmt: skip
