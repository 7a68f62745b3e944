# SPDX-License-Identifier: BSD-3-Clause
"""What quantized layers hold: it moves, is copied and saved without a change of bits."""

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.store import QInput
from tests.support.layer_models import (
    IDS,
    bits,
    quantized,
    small,
)


@pytest.mark.parametrize("move", ["half", "bfloat16", "to", "double", "cpu"])
def test_moving_a_model_keeps_scales(move: str) -> None:
    model = quantized(bs.Recipe("nvfp4", "int8"), input_scales={"1": torch.full((1, 1), 0.1)})
    stores = [m for m in model.modules() if hasattr(m, "parts")]
    before = [bits(m.named_buffers()) for m in stores]
    getattr(model, move)(*[torch.float16] * (move == "to"))
    assert [bits(m.named_buffers()) for m in stores] == before
    dtypes = {"bfloat16": torch.bfloat16, "double": torch.float64, "cpu": torch.float32}
    assert model[1].bias.dtype == model[1].weight.dtype == dtypes.get(move, torch.float16)
    assert model[1].dequantize_weight().dtype == model[1].bias.dtype
    if move != "double":  # float32 cannot hold a float64 input: an error, not a wrong number
        assert model.eval()(IDS).dtype == model[1].bias.dtype
    assert {b.device.type for b in copy.deepcopy(model).to("meta").buffers()} == {"meta"}


@pytest.mark.slow
def test_copies_and_state_dicts() -> None:
    for recipe in ("mxfp4", bs.Recipe("uint16", "uint8", "nvfp4")):
        model, other = quantized(recipe).eval(), quantized(recipe, small())
        twin, file = copy.deepcopy(model), io.BytesIO()
        other.load_state_dict(model.state_dict())
        torch.save(model.state_dict(), file)
        file.seek(0)
        third = quantized(recipe, small())
        third.load_state_dict(torch.load(file), assign=True)
        for same in (twin, other.eval(), third.eval()):
            assert bits(same.state_dict()) == bits(model.state_dict())
            assert torch.equal(same(IDS), model(IDS))
        twin[1].weight.codes.zero_()
        assert bits(other.state_dict()) == bits(model.state_dict())


def beside(x: torch.Tensor, outer: float) -> torch.Tensor:
    """NVFP4 beside a given outer scale, by a short program of its own: x [n, 16 m] -> values."""
    blocks = x.reshape(-1, 16)
    wanted = blocks.abs().amax(1, keepdim=True) / 6 / outer
    scale = wanted.clamp(2.0**-6, 448).to(torch.float8_e4m3fn).float() * outer
    y = (blocks / scale).clamp(-6, 6)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    near = (y.abs()[..., None] - grid).abs()
    ties = near == near.amin(-1, keepdim=True)
    even = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])  # the last bit of a code
    index = torch.where(ties, even + torch.arange(8) * 2.0**-8, 9.0).argmin(-1)
    return (grid[index] * y.sign() * scale).reshape(x.shape)


@pytest.mark.parametrize("spelling", ["e2m1:group16:e4m3/given", "e2m1:group16:e4m3/inv/given"])
@pytest.mark.parametrize("outer", [2.0**-9, 2.0**-6, 2.0**-2])
def test_inner_scales_are_chosen_beside_a_given_outer_one(spelling: str, outer: float) -> None:
    """Large ones saturate at 448 of it, small ones at its 2^-6: what x holds changes no outer."""
    torch.manual_seed(0)
    x = torch.randn(3, 64) * torch.logspace(-3, 2, 4).repeat_interleave(16)
    given = QInput(bs.parse(spelling))
    given.set_outer(torch.tensor(1 / outer if "inv" in spelling else outer))
    assert given.static and given.qparams is None
    torch.testing.assert_close(given(x), beside(x, outer), rtol=0, atol=0)
    torch.testing.assert_close(given(x[None])[0], beside(x, outer), rtol=0, atol=0)
    assert torch.equal(given(x[:1]), given(x)[:1])  # other rows do not matter


def test_with_its_own_outer_scale_a_tensor_has_the_bits_of_the_format() -> None:
    x = torch.randn(4, 32)
    for spelling in (
        "e2m1:group16:e4m3",
        "int4:group8:(uint8:tensor:fp32):asym",
        "uint4:token:e4m3",
    ):
        fmt = bs.parse(spelling)
        given = QInput(bs.parse(str(fmt).replace(str(fmt.scale), f"{fmt.scale}/given")))
        given.set_outer(bs.quantize(x, fmt).qparams.outer)
        assert torch.equal(given(x), bs.fake_quantize(x, fmt))


def test_an_outer_scale_is_one_number_of_a_format_that_asks_for_it() -> None:
    with pytest.raises(ValueError, match="can be passed only for a two-level format with a static"):
        QInput(bs.parse("nvfp4")).set_outer(torch.ones(1))
    for odd in (torch.ones(2), torch.ones(1, dtype=torch.float16), 1.0):
        with pytest.raises(ValueError, match="its outer scale must be one number, float32, found"):
            QInput(bs.parse("e2m1:group16:e4m3/given")).set_outer(odd)
    free = QInput(bs.parse("e2m1:group16:e4m3/given"))  # a layer that saw no data
    x = torch.randn(2, 16)
    assert not free.static and torch.equal(free(x), bs.fake_quantize(x, "nvfp4"))


def test_a_given_outer_scale_is_saved_exported_and_passes_gradients(tmp_path: Path) -> None:
    recipe = bs.Recipe("nvfp4", input="e2m1:group16:e4m3/given")
    make = lambda: nn.Sequential(nn.Linear(32, 16)).eval()  # noqa: E731
    model, x = make(), torch.randn(4, 32)
    with pytest.raises(ValueError, match=r"or let bs.calibrate choose it from data"):
        bs.quantize_(model, recipe)
    outer = torch.tensor(0.01)
    bs.quantize_(model, recipe, input_scales={"0": outer})
    expected = model(x)
    bs.save(model, tmp_path / "m.safetensors")
    loaded = bs.load(make(), tmp_path / "m.safetensors")
    assert torch.equal(loaded(x), expected) and float(loaded[0].input.outer) == float(outer)
    program = torch.export.export(model, (x,))
    assert torch.equal(program.module()(x), expected)
    x.requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None and bool(x.grad.any())
