"""What quantized layers hold: it moves, is copied and saved without a change of bits."""

import copy
import io

import pytest
import torch

import blockscale as bs
from tests.layers.models import (
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
