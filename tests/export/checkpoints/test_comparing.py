# SPDX-License-Identifier: BSD-3-Clause
"""`compare` on what other producers wrote: every layout against the floats that it means."""

import json
import math
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockscale.core import reference
from blockscale.core.joined_weights import of_stack
from blockscale.core.pack import from_stored, to_stored
from blockscale.core.parse import formats, parse
from blockscale.export.checkpoints.comparing import CheckpointSide, StoredSide, compare
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.metadata import FileError, Metadata, TensorInfo
from tests.export.checkpoints import packing
from tests.export.checkpoints.layouts.recorded import RECORDED, cases, directory
from tests.support.file_models import tiny_tensors, write_model
from tests.support.some import crossed

CASES = [
    ("gptq", "4act"), ("gptq", "8"), ("awq", "gemm"), ("bitsandbytes", "nf4 odd"),
    ("bitsandbytes", "fp4 mixed"), ("hqq", "4 axis 0 fp32"), ("quanto", "qint4 bytes fp32"),
    ("mlx", "3 bytes fp32"),
]  # fmt: skip


@pytest.mark.parametrize("elements", [300, 10**6])
@pytest.mark.parametrize(("producer", "case"), CASES, ids=" ".join)
def test_equal_to_the_floats_that_they_mean(producer, case, elements, tmp_path):
    stored, values, config = cases(producer)[case]
    theirs = directory(tmp_path / "theirs", stored, config)
    if producer in ("gptq", "awq"):  # compared before the rounding to float16
        values = _exactly(theirs)
    save_file({"a.weight": values.float()}, tmp_path / "floats.safetensors")
    found = compare(tmp_path / "floats.safetensors", theirs, elements=elements)
    [row] = found.differences
    assert (row.equal, row.name, row.shape) == (True, "a.weight", tuple(values.shape))
    assert row.a == "float32" and row.b.count(":") >= 2 and row.bits_b < 16
    assert found.only_b == (("a.bias",) if "a.bias" in stored else ())


def _exactly(path):
    """What the codes, zero points and scales mean, with the columns where they belong."""
    with CheckpointSide(_checkpoint(path)) as side:
        q, order = side._source["a.weight"], side._source.order("a.weight")
    values = q.dequantize()
    return values if order is None else torch.empty_like(values).index_copy_(1, order, values)


def _checkpoint(path):
    import blockscale as bs

    return bs.checkpoint(path)


def test_against_a_file_of_ours_that_is_transposed(tmp_path):
    """A GPT-2 layer is stored [outputs, inputs] by both, and called [inputs, outputs] by one."""
    from transformers.pytorch_utils import Conv1D

    import blockscale as bs

    model = torch.nn.ModuleDict({"c": Conv1D(32, 64)})
    parts, values = packing.gptq((32, 64), 4, 32)
    model["c"].weight.data.copy_(values.T)
    bs.quantize_(model, "int8:channel0:fp32")
    bs.save(model, tmp_path / "ours.safetensors")
    path = directory(tmp_path / "d", {f"c.{n}": t for n, t in parts.items()}, {})
    found = compare(tmp_path / "ours.safetensors", path)
    assert found.mismatched == {"c.weight": ((64, 32), (32, 64))}


def test_gguf(tmp_path):
    values = load_file(RECORDED / "gguf_values.safetensors")
    save_file(values, tmp_path / "floats.safetensors")
    found = compare(tmp_path / "floats.safetensors", RECORDED / "small.gguf")
    names = {each.name for each in found.differences}
    assert names == values.keys() and all(each.equal for each in found.differences)
    assert "blk.0.IQ2_XXS.weight" in found.unread
    assert all(each.b != "F16" for each in found.differences)


def test_which_side_it_is(tmp_path):
    stored, _, config = cases("awq")["gemm"]
    assert StoredSide.of(directory(tmp_path / "d", stored, config)) is None
    assert StoredSide.of(RECORDED / "small.gguf") is None
    save_file({"x": torch.ones(2)}, tmp_path / "floats")
    with StoredSide.of(tmp_path / "floats") as side:
        assert set(side.rows) == {"x"} and side.unread == {}
    with pytest.raises(FileError, match="does not exist"):
        compare(tmp_path / "nowhere", tmp_path / "floats")


# `compare` measures what float64 arithmetic on the whole tensors measures.


MORE = [
    "int8:channel1:fp32",
    "int8:tile3x5:fp32",
    "int8:group4@0:fp16:asym",
    "e2m1:group8:(uint8:group3@0:fp32)",
    "e2m1:group8:(uint8:channel1:fp32)",
]


@pytest.fixture(autouse=True)
def _quiet():
    warnings.simplefilter("ignore", UserWarning)


def loss(x, layout, fmt):
    """(SQNR, largest error) of the reference on the whole tensor."""
    stored = to_stored(x.float(), layout)
    if stored.ndim == 3:  # a stack of matrices, each of which has scales of its own
        fmt = of_stack(fmt, stored.shape)
    qparams = reference.choose_qparams(stored, fmt)
    values = reference.dequantize(
        reference.quantize(stored, qparams, fmt), qparams, fmt, torch.float32
    )
    error = x.double() - from_stored(values, layout, x.shape).double()
    signal, noise = x.double().square().sum(), error.square().sum()
    return (10 * (signal / noise).log10()).item(), error.abs().max().item()


@pytest.mark.some(8)
@pytest.mark.parametrize(("name", "elements"), crossed(3, [*formats(), *MORE], [1, 300, 10**6]))
def test_against_the_reference(name, elements, tmp_path):
    tensors = tiny_tensors()
    model = write_model(tmp_path / "model", tensors, 2)
    ledger = quantize_directory(model, tmp_path / "out", name)
    found = compare(model, tmp_path / "out", elements=elements)
    assert {each.name for each in found.differences} == tensors.keys()
    assert not (found.only_a or found.only_b or found.mismatched)
    for each in found.differences:
        entry = ledger[each.name]
        if entry.status != "quantized":
            assert each.equal
            assert each.sqnr == math.inf
            continue
        layout = "channels_last" if entry.kind == "convolution" else "plain"
        sqnr, largest = loss(tensors[each.name], layout, parse(name))
        assert each.sqnr == pytest.approx(sqnr, rel=1e-12)
        assert each.max_error == largest
        assert each.bits_b == 8 * entry.bytes_after / entry.elements
        assert (each.b, each.shape) == (entry.weight, tuple(tensors[each.name].shape))


@pytest.mark.parametrize("elements", [50, 10**6])
def test_layouts_may_differ(elements, tmp_path):
    x = {"h.attn.c_attn.weight": torch.randn(24, 72)}
    plain = write_model(tmp_path / "plain", x)
    gpt2 = write_model(tmp_path / "gpt2", x, config={"model_type": "gpt2"})
    for model in (plain, gpt2):
        quantize_directory(model, tmp_path / f"{model.name}-q", "int8_channel")
    [a] = compare(plain, tmp_path / "gpt2-q", elements=elements).differences
    assert a.sqnr == pytest.approx(
        loss(*x.values(), "transposed", parse("int8_channel"))[0], rel=1e-12
    )
    [b] = compare(tmp_path / "plain-q", tmp_path / "gpt2-q", elements=elements).differences
    assert 40 < b.sqnr < a.sqnr
    [c] = compare(tmp_path / "gpt2-q", tmp_path / "gpt2-q", elements=elements).differences
    assert c.equal


def write(path, tensors, metadata=None):
    save_file(tensors, path, metadata)
    return path


def test_what_is_missing_or_odd(tmp_path):
    x = torch.ones(4, 4)
    y = x.clone()
    x[0, 0] = y[0, 0] = math.nan
    x[0, 1] = y[0, 1] = math.inf
    y[0, 2] = math.inf
    a = write(tmp_path / "a.safetensors", {"x": x, "shape": torch.ones(2), "gone": torch.ones(1)})
    b = write(tmp_path / "b.safetensors", {"x": y, "shape": torch.ones(3), "new": torch.ones(1)})
    found = compare(a, b)
    [difference] = found.differences
    assert (difference.odd, difference.max_error, difference.equal) == (1, 0.0, False)
    assert (found.only_a, found.only_b) == (("gone",), ("new",))
    assert found.mismatched == {"shape": ((2,), (3,))}
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["mismatched"] == {"shape": {"a": [2], "b": [3]}}
    assert data["tensors"][0]["sqnr"] is None


def test_nothing_of_a_signal(tmp_path):
    a = write(tmp_path / "a", {"x": torch.zeros(2, 2)})
    b = write(tmp_path / "b", {"x": torch.ones(2, 2)})
    assert compare(a, b).differences[0].sqnr == -math.inf


def test_tied_names(tmp_path):
    x = torch.randn(4, 4)
    a = write(tmp_path / "a", {"embed.weight": x, "head.weight": x.clone()})
    tied = Metadata(aliases={"head.weight": "embed.weight"}).encode()
    b = write(tmp_path / "b", {"embed.weight": x}, tied)
    found = compare(a, b)
    assert len(found.differences) == 2
    assert all(each.equal for each in found.differences)
    assert not (found.only_a or found.only_b)


def test_vectors_and_scalars(tmp_path):
    """A file may hold quantized tensors of any rank."""
    for shape, spelling in (
        ((37,), "int4:group8:fp32"),
        ((), "uint8:tensor:fp32:asym"),
        ((37,), "nvfp4"),
    ):
        fmt = parse(spelling)
        x = torch.randn(shape)
        qparams = reference.choose_qparams(x, fmt)
        codes = reference.quantize(x, qparams, fmt)
        from blockscale.core.pack import pack

        parts = {"codes": pack(codes, fmt.element), **qparams._asdict()}
        stored = {f"x.{part}": t.contiguous() for part, t in parts.items() if t is not None}
        metadata = Metadata({"x": TensorInfo(str(fmt), tuple(shape))}).encode()
        a = write(tmp_path / "a", {"x": x})
        b = write(tmp_path / "b", stored, metadata)
        [found] = compare(a, b, elements=5).differences
        expected = reference.dequantize(codes, qparams, fmt, torch.float32)
        assert found.max_error == (x.double() - expected.double()).abs().max().item()


def test_nothing_in_common(tmp_path):
    a = write(tmp_path / "a", {f"x{i}": torch.ones(1) for i in range(5)})
    b = write(tmp_path / "b", {"y": torch.ones(1)})
    with pytest.raises(
        FileError, match=r"the two have no tensor in common: .*x0, x1, x2 and 2 more; .*b has y"
    ):
        compare(a, b)


def test_many_rows_of_nothing(tmp_path):
    """An empty tensor is one slab, however many rows it has: 2^40 took for ever."""
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.empty(2**40, 0), "y": torch.ones(0, 2**40, 3), "z": torch.ones(2)}, path)
    found = compare(path, path)
    assert [each.name for each in found.differences if each.equal] == ["x", "y", "z"]
