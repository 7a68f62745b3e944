# SPDX-License-Identifier: BSD-3-Clause
"""What a read gives: a tensor that cannot be written to, and the module that it stands for."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import blockscale as bs
from blockscale.layers import weight_source as sources
from blockscale.layers.store import QWeight
from blockscale.layers.weight_tensor import WeightTensor
from tests.layers.before.kinds import kinds
from tests.support.read_models import inputs, pair

FORMATS = ("mxfp4", "nvfp4", "int8_channel", "int8", "nf4:group32:fp32", "uint4:group16:fp32:asym")


@pytest.mark.some(6)
@pytest.mark.parametrize("grad", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("fmt", FORMATS)
def test_models_that_read_weights(fmt: str, grad: type) -> None:
    model, plain = pair(fmt)
    with grad():
        for i, (y, expected) in enumerate(zip(model(*inputs()), plain(*inputs()), strict=True)):
            assert type(y) is Tensor or isinstance(y, WeightTensor), i
            torch.testing.assert_close(y + 0, expected, rtol=1e-5, atol=1e-5, msg=f"{fmt} {i}")


def test_as_a_tensor() -> None:
    model, plain = pair("mxfp4")
    w, expected = model.fc.weight, plain.fc.weight.detach()
    assert isinstance(w, Tensor)
    assert (w.shape, w.dtype, w.device, w.ndim) == ((32, 64), torch.float32, expected.device, 2)
    assert (w.requires_grad, w.grad, w.is_contiguous(), w.stride()) == (False, None, True, (64, 1))
    assert np.array_equal(w.numpy(), expected.numpy())
    assert w.tolist() == expected.tolist()
    assert np.array_equal(np.asarray(w), expected.numpy())
    assert torch.equal(w.dequantize(), expected)
    assert torch.equal(w.to(torch.bfloat16), expected.to(torch.bfloat16))
    assert torch.equal(pickle.loads(pickle.dumps(w)), expected)
    assert torch.equal(copy.deepcopy(w) + 0, expected)
    with pytest.raises(RuntimeError, match=r"requires_grad_ writes to fc\.weight"):
        nn.Parameter(w)
    assert "mxfp4" not in repr(w)
    assert "e2m1:group32:e8m0/floor" in repr(w)
    assert w.nbytes == model.fc.qweight.nbytes


def test_as_the_module_that_holds_the_codes() -> None:
    """torch finds buffers by reading `weight`: whoever does gets what he asks for."""
    model, _ = pair("mxfp4")
    held = model.fc.qweight
    assert isinstance(held, QWeight)
    assert isinstance(model.fc.weight, QWeight)
    assert model.get_buffer("fc.weight.codes") is held.codes
    assert model.get_submodule("fc.weight").fmt == held.fmt
    zeros = {"fc.weight.codes": torch.zeros_like(held.codes)}
    y = functional_call(model, zeros, inputs())[0]
    assert torch.equal(y, model.fc.bias.expand_as(y))
    model.fc.weight.codes = torch.zeros_like(held.codes)  # as loaders set tensors by their names
    assert not held.codes.any()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = model.fc.weight.nothing


WRITES = {
    "zero_": lambda fc: fc.weight.zero_(),
    "copy_": lambda fc: fc.weight.data.copy_(torch.zeros(32, 64)),
    "an item": lambda fc: fc.weight.__setitem__(0, 1),
    "of a view": lambda fc: fc.weight.view(-1).fill_(0),
    "of a column": lambda fc: fc.weight[:, 3].zero_(),
    "a parameter": lambda fc: setattr(fc, "weight", nn.Parameter(torch.zeros(32, 64))),
    "data": lambda fc: setattr(fc.weight, "data", torch.zeros(32, 64)),
    "out": lambda fc: torch.add(torch.zeros(32, 64), 1, out=fc.weight),
    "init": lambda fc: nn.init.normal_(fc.weight),
    "times 3": lambda fc: fc.weight.mul_(3),
    "minus": lambda fc: fc.weight.sub_(1),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_are_refused_by_name(write: str) -> None:
    model, plain = pair("mxfp4")
    with pytest.raises(RuntimeError, match=r"fc.weight, which is quantized.*skip=\['fc'\]"):
        WRITES[write](model.fc)
    assert torch.equal(model.fc.weight + 0, plain.fc.weight)
    with pytest.raises(RuntimeError, match=r"stack, which is quantized.*skip=\['stack'\]"):
        model.stack.zero_()
    with pytest.raises(RuntimeError, match=r"stack, which is quantized"):
        model.stack = torch.zeros(1)


def test_layers_that_share_codes_give_one_tensor() -> None:
    model, _ = pair("int8_channel")
    other = nn.Linear(64, 32)
    holder = nn.Sequential(other)
    bs.quantize_(holder, "int8_channel")
    assert holder[0].weight is not model.fc.weight
    holder[0].weight = model.fc.weight  # as tie_weights does
    assert holder[0].weight is model.fc.weight
    assert holder[0].qweight is model.fc.qweight
    model.fc.to(torch.float64)  # a read from before has another dtype
    assert model.fc.weight.dtype == torch.float64


@pytest.mark.slow
def test_one_dequantize_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pair("mxfp4")
    counted = []
    dense = sources.Source.floats

    def floats(self: sources.Source) -> Tensor:
        counted.append(self.value is None)
        return dense(self)

    monkeypatch.setattr(sources.Source, "floats", floats)
    w = model.fc.weight
    _ = (w * 2, w + 1, w.sum(), torch.where(w > 0, w, 0))
    assert sum(counted) == 1
    counted.clear()
    x = torch.randn(3, 64)
    _ = (
        x @ w.t(),
        nn.functional.linear(x, w),
        nn.functional.linear(x, w[4:8]),
        w.shape,
        w.t().shape,
    )
    assert not counted  # products and pieces need no floats
    del w
    gc.collect()


@pytest.mark.slow
def test_programs_get_floats() -> None:
    model, plain = pair("int8_channel")
    with torch.no_grad():
        expected = plain(*inputs())
        compiled = torch.compile(model, fullgraph=True, backend="eager")(*inputs())
        exported = torch.export.export(model, inputs()).module()(*inputs())
    for y, z, e in zip(compiled, exported, expected, strict=True):
        torch.testing.assert_close(y, e, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(z, e, rtol=1e-5, atol=1e-5)


def test_a_before_is_undone() -> None:
    """The read weight is for the layer's own input, not for what stands before it gives."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32))
    before = copy.deepcopy(model)
    bs.quantize_(model, "int16:channel0:fp32", before={"0": kinds(64)[0]})
    assert model[0].before is not None
    assert torch.equal(model[0].weight + 0, model[0].dequantize_weight())
    torch.testing.assert_close(model[0].weight + 0, before[0].weight, rtol=0, atol=1e-4)
    x = torch.randn(4, 64)
    expected = nn.functional.linear(x, model[0].dequantize_weight())
    assert torch.equal(nn.functional.linear(x, model[0].weight), expected)


def test_parts_that_torch_has_methods_for_are_found_by_name() -> None:
    """torch finds `fc.weight.outer` by reading `weight` of `fc`, and `outer` of that."""
    model = nn.Sequential(nn.Linear(32, 32))
    bs.quantize_(model, "nvfp4")
    weight, held = model[0].weight, model[0].qweight
    assert all(getattr(weight, name) is buffer for name, buffer in held.named_buffers())
    bs.quantize_(plain := nn.Sequential(nn.Linear(32, 32)), "mxfp4")
    assert callable(plain[0].weight.outer)


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4"])
def test_a_traced_pipeline_keeps_no_part_as_an_input(fmt: str) -> None:
    from torch.distributed.pipelining import SplitPoint, pipeline

    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).eval()
    bs.quantize_(model, fmt)
    x = torch.randn(2, 32)
    pipe = pipeline(model, mb_args=(x,), split_spec={"2": SplitPoint.BEGINNING})
    for stage in pipe.split_gm.children():
        assert len(stage.graph.find_nodes(op="placeholder")) == 1
    with torch.no_grad():
        [y] = pipe(x)
        assert torch.equal(y, model(x))
