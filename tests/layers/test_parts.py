# SPDX-License-Identifier: BSD-3-Clause
"""Layers in formats with every part beside their codes: bit-equal wherever they are put."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import blockscale as bs
from blockscale.core.pack import to_stored
from tests.support.layer_formats import FORMATS, REFERENCE
from tests.support.layer_models import IDS, bits, small

LAYERS = ("0", "1", "5", "8")
pytestmark = pytest.mark.filterwarnings(REFERENCE)


def model(recipe) -> nn.Module:
    torch.manual_seed(0)
    made = small().eval()
    bs.quantize_(made, recipe)
    return made


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_layer_holds_what_the_tensor_function_gives(fmt: str) -> None:
    torch.manual_seed(0)
    floats = small().eval()
    weights = {
        name: m.weight.detach().clone() for name, m in floats.named_modules() if name in LAYERS
    }
    quantized = model(fmt)
    for name in LAYERS:
        layer = quantized.get_submodule(name)
        q = bs.quantize(to_stored(weights[name], layer.layout), fmt)
        found = dict(layer.weight.named_buffers())
        assert set(found) == {"codes", *q.format.parts}
        assert bits(found) == bits({"codes": q.packed, **q.qparams._asdict()})
        stored = to_stored(layer.dequantize_weight(), layer.layout)
        assert torch.equal(stored, q.dequantize())
    rows = quantized[0](IDS)
    assert torch.equal(rows, quantized[0].dequantize_weight()[IDS])


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_copies_states_and_values_keep_every_bit(fmt: str) -> None:
    one, other, file = model(fmt), model(fmt), io.BytesIO()
    for buffer in other.buffers():
        if buffer.dtype.is_floating_point:
            buffer.zero_()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    for same in (other, copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert bits(same.state_dict()) == bits(one.state_dict())
        assert torch.equal(same(IDS), one(IDS))
    half = copy.deepcopy(one).half()
    assert bits(half[1].weight.named_buffers()) == bits(one[1].weight.named_buffers())
    q = one[1].weight.tensor
    leaves, spec = pytree.tree_flatten(q)
    assert len(leaves) == 1 + len(q.format.parts)
    for twin in (pytree.tree_unflatten(leaves, spec), pickle.loads(pickle.dumps(q))):
        assert torch.equal(twin.dequantize(), q.dequantize())
    assert one[1].weight.nbytes == q.nbytes


def test_a_state_without_an_offset_is_refused() -> None:
    one = model("uint4:group32:fp16:offset")
    state = one.state_dict()
    state.pop("1.weight.offset")
    with pytest.raises(RuntimeError, match=r"1\.weight\.offset"):
        model("uint4:group32:fp16:offset").load_state_dict(state)


@pytest.mark.parametrize(
    "fmt", ["uint8:token:fp32:offset", "uint8:token:fp16:asym(fp16)", "nf4:group8:fp32"]
)
def test_dynamic_inputs(fmt: str) -> None:
    quantized = model(bs.Recipe("int8_channel", input=fmt, output=fmt))
    x = torch.randn(3, 64)
    layer = quantized[1]
    y = bs.quantize(x, fmt).dequantize() @ layer.dequantize_weight().T + layer.bias
    torch.testing.assert_close(layer(x), bs.fake_quantize(y, fmt), rtol=0.1, atol=0.1)
    assert torch.equal(layer.input(x), bs.fake_quantize(x, fmt))


def test_a_static_input_with_an_offset_is_supplied() -> None:
    torch.manual_seed(0)
    made, x, fmt = small().eval(), torch.rand(3, 64) + 5, "uint8:tensor:fp32:offset"
    q = bs.quantize(x, fmt)
    recipe = bs.Recipe("int8_channel", rules={"1": {"input": fmt}})
    bs.quantize_(made, recipe, input_scales={"1": (q.scale, None, q.offset)})
    assert torch.equal(made[1].input(x), q.dequantize())
    assert torch.equal(made[1].input(x[None]), q.dequantize()[None])
    floats = small()
    for given in (q.scale, (q.scale, None), (q.scale, None, q.offset.double())):
        with pytest.raises(ValueError, match=r"input_scales\['1'\].*offset"):
            bs.quantize_(floats, recipe, input_scales={"1": given})


@pytest.mark.parametrize("part", ["weight", "input", "output"])
def test_what_cannot_be_chosen_is_refused_before_anything_changes(part: str) -> None:
    fmt = {"weight": "int8:group32:e8m0/given", "input": "e4m3:token:pow2/given"}
    recipe = bs.Recipe(**({"weight": "int8"} | {part: fmt.get(part, fmt["input"])}))
    made = small()
    made[0].requires_grad_(False)
    first = f"{1 if part == 'input' else 0}: its {part}"  # an embedding has no input
    for change in (
        lambda: bs.quantize_(made, recipe),
        lambda: bs.prepare_qat(made, recipe),
        lambda: bs.calibrate(made, [(IDS,)], recipe, progress=False),
    ):
        with pytest.raises(ValueError, match=f"^{first}.*must be supplied"):
            change()
        assert type(made[0]) is nn.Embedding and type(made[1]) is nn.Linear


def test_what_cannot_be_chosen_can_be_supplied() -> None:
    made = nn.Sequential(nn.Linear(64, 8))
    q = bs.quantize(made[0].weight.detach(), "int8:group32:e8m0")
    given = bs.QTensor(q.packed, q.qparams, bs.parse("int8:group32:e8m0/given"), q.size)
    bs.quantize_(made, "int8:group32:e8m0/given", weights={"0": given})
    assert torch.equal(made[0].dequantize_weight(), q.dequantize())


def test_parts_that_do_not_fit_skip_the_layer() -> None:
    made = nn.Sequential(nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="divides the tensor"):
        ledger = bs.quantize_(made, "int8:group2:fp16:offset(int8:flat4@0:fp32)")
    assert ledger["0"].status == "skipped" and type(made[0]) is nn.Linear
