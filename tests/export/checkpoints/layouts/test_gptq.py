# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: versions, groups, act-order, and modules that are not what they should be."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.export.checkpoints.layouts.gptq import zero_points
from tests.export.checkpoints.layouts.recorded import cases, directory
from tests.export.checkpoints.packing import gptq, stream

V2 = {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "sym": False}


def opened(path, parts, config):
    stored = {f"a.{name}": tensor for name, tensor in parts.items()}
    return bs.checkpoint(directory(path / "d", stored, config))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("ordered", [False, True])
def test_version_2(bits, ordered, tmp_path):
    parts, values = gptq((32, 96), bits, 32, ordered=ordered)
    with opened(tmp_path, parts, V2 | {"bits": bits, "group_size": 32}) as found:
        told = found.stored["a.weight"]
        assert told.kind == f"gptq {bits} bits" + ", act-order" * ordered
        assert told.format == f"uint{bits}:group32:fp16:asym" and told.shape == (32, 96)
        assert found.has_order("a.weight") == ordered == (found.order("a.weight") is not None)
        assert torch.equal(found.dequantize("a.weight"), values.half())
        assert "of version 2 (checkpoint_format gptq_v2)" in found.evidence


def as_int32(words):
    return torch.tensor(np.array(words, dtype=np.uint32).view(np.int32)).view(1, -1)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_version_1_as_each_producer_packs_a_zero_of_0(bits):
    """AutoGPTQ: a field of -1 covers those above. GPTQModel: whole words less a one in each."""
    count = 32 // bits
    zeros = [0 if i in (1, count - 1) else i % 2**bits for i in range(count)]
    word = sum(z << bits * i for i, z in enumerate(zeros))
    borrowed = (word - sum(1 << bits * i for i in range(count))) % 2**32
    assert zero_points(as_int32([borrowed]), bits, "1 of GPTQModel").tolist() == [zeros]
    covered = 0
    for i, z in enumerate(zeros):
        covered |= ((z - 1) % 2**32 << bits * i) % 2**32
    found = zero_points(as_int32([covered]), bits, "1 of AutoGPTQ").tolist()[0]
    broken = next(i for i, z in enumerate(zeros) if z == 0)
    assert found[: broken + 1] == zeros[: broken + 1]
    assert set(found[broken + 1 :]) == {0}  # it lost them when it packed
    assert zero_points(as_int32([word]), bits, "2").tolist() == [zeros]


def test_three_bits_of_version_1():
    stored = stream(np.arange(32).reshape(32, 1) % 8, 3).T.contiguous()
    plus_one = [i % 8 + 1 for i in range(32)]
    assert zero_points(stored, 3, "1 of AutoGPTQ").tolist() == [plus_one]
    assert zero_points(stored, 3, "1 of GPTQModel").tolist() == [[z % 8 for z in plus_one]]


@pytest.mark.parametrize(
    ("stored", "told", "sym", "version"),
    [
        (8, "gptq", True, "2"), (7, "gptq_v2", True, "1 of AutoGPTQ"), (8, "gptq_v2", True, "2"),
        (7, "gptq", None, "1 of AutoGPTQ"), (8, None, None, "2"),
        (8, "gptq", False, "1 of AutoGPTQ"), (6, "gptq", True, "1 of AutoGPTQ"),
    ],
)  # fmt: skip
def test_the_zero_points_of_symmetric_files_tell_the_version(stored, told, sym, version, tmp_path):
    parts, _ = gptq((32, 64), 4, 32, z=stored)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    config |= {"checkpoint_format": told} if told else {}
    config |= {} if sym is None else {"sym": sym}
    with opened(tmp_path, parts, config) as found:
        assert f"of version {version} (" in found.evidence
        lies = told is not None and stored in (7, 8) and sym is not False
        lies = lies and (told == "gptq") != (stored == 7)
        assert len(found.warnings) == lies
        q = found["a.weight"]
    assert set(q.zero_point.unique().tolist()) == {stored + (version != "2")}


def test_who_wrote_it(tmp_path):
    parts, _ = gptq((32, 64), 4, 32)
    config = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq", "sym": False}
    with opened(tmp_path, parts, config | {"meta": {"quantizer": ["gptqmodel:4.2.5"]}}) as found:
        assert "of version 1 of GPTQModel" in found.evidence


def test_modules_of_their_own_bits_and_groups(tmp_path):
    """`dynamic` gives modules others than the configuration says; shapes tell."""
    parts, values = gptq((32, 128), 8, 64)
    with opened(tmp_path, parts, V2 | {"bits": 4, "group_size": 32}) as found:
        assert found.stored["a.weight"].format == "uint8:group64:fp16:asym"
        assert torch.equal(found.dequantize("a.weight"), values.half())


@pytest.mark.parametrize("config", [{}, {"quant_method": "gptq", "bits": 4, "group_size": -1}])
def test_whole_rows_and_no_g_idx(config, tmp_path):
    parts, _ = gptq((32, 64), 4, 64)
    del parts["g_idx"]
    with opened(tmp_path, parts, config) as found:
        assert found.stored["a.weight"].format == "uint4:channel0:fp16:asym"


def changed(**others):
    parts, _ = gptq((32, 64), 4, 32)
    return {name: t for name, t in (parts | others).items() if t is not None}


@pytest.mark.parametrize(
    ("parts", "config", "told"),
    [
        (changed(), {"checkpoint_format": "marlin"}, "its checkpoint_format is 'marlin'"),
        (changed(scales=torch.ones(2, 32).double()), {}, "its scales are torch.float64"),
        (changed(g_idx=torch.zeros(63).int()), {}, "its shapes match no number of bits"),
        (changed(qzeros=torch.zeros(2, 3).int()), {}, "its qzeros have 3 words per group"),
        (changed(qweight=torch.zeros(8, 31).int()), {}, "holds codes of GPTQ or AWQ"),
        (changed(qzeros=None), {}, "holds codes of GPTQ or AWQ"),
    ],
)  # fmt: skip
def test_what_is_refused(parts, config, told, tmp_path):
    with opened(tmp_path, parts, {"quant_method": "gptq", "bits": 4} | config) as found:
        assert set(found) == {"a.weight"}
        assert told in found.stored["a.weight"].unread
        with pytest.raises(bs.FileError, match=r"a\.weight: "):
            found["a.weight"]


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (torch.arange(64) // 31, "g_idx names groups 0 to 2 of 2"),
        (-(torch.arange(64) // 32), "g_idx names groups -1 to 0 of 2"),
        ((torch.arange(64) >= 30).long(), "g_idx has groups of other sizes than 32"),
    ],
)
def test_orders_that_are_none(index, told, tmp_path):
    with opened(tmp_path, changed(g_idx=index.int()), V2 | {"bits": 4}) as found:
        with pytest.raises(bs.FileError, match=f"a.weight: {told}"):
            found["a.weight"]
        with pytest.raises(bs.FileError, match=f"a.weight: {told}"):
            found.order("a.weight")


def test_it_runs_on_the_kernels(tmp_path):
    stored, _, config = cases("gptq")["4"]
    with bs.checkpoint(directory(tmp_path / "d", stored, config)) as found:
        q = found["a.weight"]
    assert q.packed.dtype == torch.uint8 and q.packed.shape == (32, 64)
    assert q.scale.dtype == torch.float16 and q.zero_point.dtype == torch.int32
