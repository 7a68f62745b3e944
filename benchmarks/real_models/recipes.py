# SPDX-License-Identifier: BSD-3-Clause
"""The recipes that are measured: formats of weights and inputs, and how each was calibrated."""

from dataclasses import dataclass, field
from typing import Any

import blockscale as bs

INT4 = "int4:group32:fp16"


@dataclass(frozen=True)
class Case:
    """A row: formats of weights and inputs, and bs.calibrate's settings ({}: plain rounding).

    preset: the preset that it is; by: whose code quantizes, where it is not ours (peers)
    """

    name: str
    weight: str
    input: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None
    by: str = ""

    @classmethod
    def of_preset(cls, name: str) -> "Case":
        """The row of a preset, all of it."""
        data = bs.presets()[name].data
        how = dict(data.get("calibration", {}))
        return cls(f"preset {name}", data["weight"], data.get("input"), how, name)

    @property
    def recipe(self) -> bs.Recipe:
        """What bs.quantize_ and bs.calibrate take, beside `settings`."""
        if self.preset is not None:
            return bs.preset(self.preset)
        return bs.Recipe(weight=self.weight, input=self.input)


def _mx(rule: str) -> str:
    return f"e2m1:group32:e8m0/{rule}"


E5M3, FOUR_SIX, TOKEN = "nvfp4_e5m3", "e2m1:group16:e4m3/four_six", "nvfp4_token"
IF4, IF4_TOKEN = "if4:group16:e4m3", "if4:group16:(e4m3:token:fp32)"
SMOOTH = {"transform": "smoothquant", "weight": "gptq:absmax"}  # what w4a4-nvfp4 is made by


def _relatives() -> list[Case]:
    """NVFP4's relatives of 4.5 bits: other scales, and inputs whose rows know no other."""
    awq = {"transform": "awq"}
    cases = [Case(fmt, fmt) for fmt in (E5M3, FOUR_SIX, IF4)]
    cases += [Case(f"{fmt} awq", fmt, None, awq) for fmt in (E5M3, FOUR_SIX, IF4)]
    cases.append(Case(f"{FOUR_SIX} awq gptq", FOUR_SIX, None, {**awq, "weight": "gptq"}))
    pairs = [("nvfp4", TOKEN), (E5M3, E5M3), (FOUR_SIX, FOUR_SIX), ("nvfp4", FOUR_SIX)]
    pairs += [(IF4, IF4), (IF4, IF4_TOKEN)]
    cases += [Case(f"{weight} × {taken}", weight, taken) for weight, taken in pairs]
    cases += [
        Case(f"{weight} × {taken} smoothquant gptq:absmax", weight, taken, SMOOTH)
        for weight, taken in pairs
        if taken in (weight, TOKEN)
    ]
    return cases


def _pairs() -> list[Case]:
    cases = []
    for rule in ("floor", "tosa", "even", "rceil"):
        fmt = _mx(rule)
        cases.append(Case(f"mxfp4 {rule} pair", fmt, fmt))
        cases += [
            Case(f"mxfp4 {rule} pair {how}", fmt, fmt, {"transform": how})
            for how in ("hadamard:32", "awq", "smoothquant", "quarot")
        ]
    fmt = _mx("tosa")
    for how in ("awq", "smoothquant"):
        for weight in ("gptq:absmax", "gptq"):
            both = {"transform": how, "weight": weight}
            cases.append(Case(f"mxfp4 tosa pair {how} {weight}", fmt, fmt, both))
    return cases


CASES = [
    Case("int8_channel", "int8_channel"),
    Case("int8_channel × int8_token", "int8_channel", "int8_token"),
    Case("int8_channel × int8_token smoothquant", "int8_channel", "int8_token",
         {"transform": "smoothquant"}),
    Case("int4 group32", INT4),
    Case("int4 group32 asym", f"u{INT4}:asym"),
    Case("int4 group32 mse", INT4, None, {"weight": "mse"}),
    Case("int4 group32 gptq", INT4, None, {"weight": "gptq"}),
    Case("int4 group32 asym gptq", f"u{INT4}:asym", None, {"weight": "gptq"}),
    Case("int4 group32 awq", INT4, None, {"transform": "awq"}),
    Case("int4 group32 awq gptq", INT4, None, {"transform": "awq", "weight": "gptq"}),
    Case("int4 group32 asym awq gptq", f"u{INT4}:asym", None,
         {"transform": "awq", "weight": "gptq"}),
    Case("int4 group16 asym awq gptq", "uint4:group16:fp16:asym", None,
         {"transform": "awq", "weight": "gptq"}),
    Case("int4 group128 gptq", "int4:group64:fp16", None, {"weight": "gptq"}),
    Case("nvfp4", "nvfp4"),
    Case("nvfp4 gptq", "nvfp4", None, {"weight": "gptq"}),
    Case("nvfp4 pair", "nvfp4", "nvfp4"),
    Case("nvfp4 pair mse", "nvfp4", "nvfp4", {"weight": "mse"}),
    Case("nvfp4 pair gptq", "nvfp4", "nvfp4", {"weight": "gptq"}),
    Case("nvfp4 pair awq", "nvfp4", "nvfp4", {"transform": "awq"}),
    Case("nvfp4 pair smoothquant", "nvfp4", "nvfp4", {"transform": "smoothquant"}),
    Case("nvfp4 pair quarot", "nvfp4", "nvfp4", {"transform": "quarot"}),
    Case("nvfp4 awq", "nvfp4", None, {"transform": "awq"}),
    *(
        Case(f"nvfp4 pair smoothquant {weight}", "nvfp4", "nvfp4",
             {"transform": "smoothquant", "weight": weight})
        for weight in ("gptq:absmax", "gptq")
    ),
    Case("int8_channel awq", "int8_channel", None, {"transform": "awq"}),
    Case("nvfp4 pair hadamard:16", "nvfp4", "nvfp4", {"transform": "hadamard:16"}),
    Case("nvfp4 pair hadamard:16 gptq", "nvfp4", "nvfp4",
         {"transform": "hadamard:16", "weight": "gptq"}),
    *_relatives(),
    Case("nvfp4 × mxfp8 gptq", "nvfp4", "mxfp8", {"weight": "gptq"}),
    *_pairs(),
    Case("mxfp4 floor", "mxfp4"),
    Case("mxfp4 tosa gptq", _mx("tosa"), None, {"weight": "gptq"}),
    Case("mxfp4 × mxfp8", "mxfp4", "mxfp8"),
    Case("mxfp8 pair", "mxfp8", "mxfp8"),
    Case("mxint8 pair", "mxint8", "mxint8"),
    Case("int3 group32 gptq", "int3:group32:fp16", None, {"weight": "gptq"}),
    Case("int4 group32 signround", INT4, None, {"weight": "signround"}),
    Case("nvfp4 pair signround", "nvfp4", "nvfp4", {"weight": "signround"}),
    Case("mxfp4 tosa pair hadamard:32 signround", _mx("tosa"), _mx("tosa"),
         {"transform": "hadamard:32", "weight": "signround"}),
]  # fmt: skip
