# SPDX-License-Identifier: BSD-3-Clause
"""ggml's own bytes (tests/recorded/record_ggml.py): 0 of them differ."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.knobs import Profile
from blockscale.core.profiles.producers.gguf import PROFILES
from blockscale.export.checkpoints.gguf.records import TYPES
from tests.support.ggml_recorded import RECORDED, in_blocks
from tests.support.profile_inputs import KINDS


def differing(name: str, kind: str, profile: Profile) -> int:
    x, theirs = RECORDED[f"x.{kind}"], RECORDED[f"{name}.{kind}"]
    ours = in_blocks(name, bs.quantize(x, profile))
    assert ours.shape == theirs.shape
    return int((ours != theirs).sum())


def test_there_is_one_for_every_type_that_is_read() -> None:
    assert {profile.name for profile in PROFILES} == {f"gguf.{name.lower()}" for name in TYPES}


@pytest.mark.parametrize("name", TYPES)
def test_bytes(name: str) -> None:
    profile = bs.profile(f"gguf.{name.lower()}", "0.19")
    assert {kind: differing(name, kind, profile) for kind in KINDS} == dict.fromkeys(KINDS, 0)


@pytest.mark.parametrize("name", ["Q4_K", "Q3_K", "IQ4_XS", "TQ1_0", "Q5_1"])
def test_a_tensor_of_bfloat16_is_one_of_float32(name: str) -> None:
    """As in ggml, which widens first; and blocks of several rows and of leading dimensions."""
    x = RECORDED["x.wide_rows"].bfloat16()
    profile = bs.profile(f"gguf.{name.lower()}")
    ours, expected = bs.quantize(x, profile), bs.quantize(x.float(), profile)
    assert torch.equal(in_blocks(name, ours), in_blocks(name, expected))
    folded = bs.quantize(x.reshape(3, 4, -1), profile)
    assert torch.equal(in_blocks(name, folded), in_blocks(name, ours))
    pairs = bs.quantize(x.reshape(6, -1), profile)
    assert torch.equal(in_blocks(name, pairs), in_blocks(name, ours))


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gguf.q4_k: rows of 256 do not divide .* \(2, 128\)"):
        bs.quantize(torch.randn(2, 128), bs.profile("gguf.q4_k"))
    with pytest.raises(ValueError, match=r"gguf.q8_0: rows of 32 do not divide"):
        bs.quantize(torch.randn(2, 40), bs.profile("gguf.q8_0"))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "MXFP4"])
def test_the_contract_gives_other_bytes(name: str) -> None:
    """Twin: without the producer's rules some of the same bytes differ."""
    fmt = "mxfp4" if name == "MXFP4" else TYPES[name].format
    q = bs.quantize(RECORDED["x.ties"], fmt)
    q = replace(q, format=bs.parse(TYPES[name].format))
    assert not torch.equal(in_blocks(name, q), RECORDED[f"{name}.ties"])


def test_it_is_nearer_than_the_contract() -> None:
    x = torch.randn(64, 256)
    found = bs.quantize(x, bs.profile("gguf.iq4_nl"))
    plain = bs.quantize(x, found.format)
    weights = (x * x).reshape(64, -1, 32)

    def errors(q: bs.QTensor) -> torch.Tensor:
        return (weights * (q.dequantize() - x).reshape(64, -1, 32) ** 2).sum(-1)

    assert float(errors(found).sum()) < 0.95 * float(errors(plain).sum())


def test_blocks_of_zeros_have_the_code_nearest_to_zero() -> None:
    for name in ("iq4_nl", "iq4_xs"):
        q = bs.quantize(torch.zeros(1, 256), bs.profile(f"gguf.{name}"))
        assert q.codes.unique().tolist() == [8]  # 1: the table has no 0
        assert not q.dequantize().any()
