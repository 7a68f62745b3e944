# SPDX-License-Identifier: BSD-3-Clause
"""Rules that torchao does not have, against a producer that has them: gguf 0.19.0's own bytes.

Its quantizers are rules of scales and codes like any other; profiles of their own come with the
reader of its files. tests/recorded/record_gguf.py says how the bytes were made.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import profiles
from blockscale.core.parse import parse
from blockscale.core.profiles.codes import first_of_equals, quantize
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams
from tests.support.gguf_codes import RECORDED, halves, q4_0, q5_0, q8_0
from tests.support.profile_inputs import KINDS


def gguf(name: str, spelling: str, **rules: object) -> Profile:
    return Profile(name=f"gguf.{name}", version="0.19.0", format=parse(spelling), **rules)


FP16 = {"least": 0.0, "before_cast": True, "reciprocal": True}
PROFILES: dict[str, Profile] = {
    "Q8_0": gguf("q8_0", "int8:group32:fp16", search="nearest_away", **FP16),
    "Q4_0": gguf(
        "q4_0", "int4:group32:fp16:full", levels=-8.0, sign="largest", search="half_up_add", **FP16
    ),
    "Q5_0": gguf(
        "q5_0", "int5:group32:fp16:full", levels=-16.0, sign="largest", search="half_up_add", **FP16
    ),
    "MXFP4": gguf("mxfp4", "mxfp4", search="first_nearest", negative_zero=False),
}


def mxfp4(b: Tensor) -> tuple[Tensor, QParams]:
    return halves(b[:, 1:]), QParams(b[:, :1])


APART: dict[str, tuple[Callable[[Tensor], tuple[Tensor, QParams]], int]] = {
    "Q8_0": (q8_0, 34),
    "Q4_0": (q4_0, 18),
    "Q5_0": (q5_0, 22),
    "MXFP4": (mxfp4, 17),
}


def compared(name: str, kind: str, profile: Profile) -> tuple[int, int]:
    """How many codes and scales differ from gguf's."""
    x = RECORDED[f"x.{kind}"]
    apart, size = APART[name]
    theirs, stored = apart(RECORDED[f"{name}.encoded.{kind}"].reshape(-1, size).contiguous())
    codes, qparams, _ = quantize(x, profile)
    scales = qparams.scale.reshape(-1, 1)
    return int((codes.reshape(theirs.shape) != theirs).sum()), int((scales != stored.scale).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROFILES)
def test_bytes_of_gguf(name: str, kind: str) -> None:
    assert compared(name, kind, PROFILES[name]) == (0, 0)


CHANGES = [
    ("Q8_0", "ties", {"search": "format"}),
    ("Q8_0", "wide_rows", {"before_cast": False}),
    ("Q8_0", "tiny", {"least": None}),
    ("Q4_0", "normal", {"search": "toward_zero"}),
    ("Q4_0", "normal", {"sign": "positive"}),
    ("Q4_0", "normal", {"levels": 7.0}),
    ("MXFP4", "normal", {"negative_zero": True, "search": "format"}),
    ("MXFP4", "ties", {"search": "format"}),
    ("MXFP4", "mixed", {"zero_scale": 1.0}),
]


@pytest.mark.parametrize(("name", "kind", "rule"), CHANGES)
def test_each_rule_is_needed(name: str, kind: str, rule: dict[str, object]) -> None:
    """Twin: with one rule taken away, codes or scales differ."""
    assert compared(name, kind, replace(PROFILES[name], **rule)) != (0, 0)  # type: ignore[arg-type]


def test_a_table_without_equals() -> None:
    table, codes = first_of_equals(parse("mxfp4").element)
    assert codes == (*range(8), *range(9, 16))  # no -0
    assert table.table[:4] == (0.0, 0.5, 1.0, 1.5)
    middles = torch.tensor([0.25, 0.75, -2.5, 5.0, -5.0, 0.2500001])
    found = table.encode(middles, torch.round, None, False).tolist()
    assert [table.table[code] for code in found] == [0.0, 0.5, -2.0, 4.0, -4.0, 0.5]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", profiles.names())
def test_the_public_function_packs_the_same_codes(name: str) -> None:
    x = torch.randn(6, 256)
    profile = bs.profile(name)
    q = bs.quantize(x.requires_grad_(), profile)
    codes, qparams, fmt = quantize(x.detach(), profile)
    assert torch.equal(q.codes, codes)
    assert torch.equal(q.qparams.scale, qparams.scale)
    assert q.format == fmt


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchao.int8_asym"])
def test_it_compiles(name: str) -> None:
    profile = bs.profile(name)

    def values(x: torch.Tensor) -> torch.Tensor:
        codes, qparams, _ = quantize(x, profile)
        return codes.float().sum() + qparams.scale.float().sum()

    x = torch.randn(4, 64)
    assert torch.equal(torch.compile(values, backend="eager")(x), values(x))


def test_its_tensors_are_read_as_any_other(tmp_path) -> None:
    q = bs.quantize(torch.randn(8, 64), bs.profile("torchao.intx4"))
    assert str(q.format) == "int4:group32:fp32:full"
    torch.save(q, tmp_path / "q.pt")
    again = torch.load(tmp_path / "q.pt")
    assert torch.equal(again.dequantize(), q.dequantize())
    same = bs.quantize(q.dequantize(), q.format, q.scale)  # values lie on the grid
    assert torch.equal(same.codes, q.codes)
