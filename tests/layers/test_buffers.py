"""Buffers that keep their dtype and know in which format they are."""

import pytest
import torch
from torch import nn

from blockscale.layers.buffers import Buffers
from tests.layers.models import (
    quantized,
)


@pytest.mark.parametrize(("one", "other"), [("mxint8", "mxfp8"), ("mxfp8", "mxfp8_e5m2")])
def test_a_state_of_another_format_is_refused(one: str, other: str) -> None:
    """Equal shapes, other meaning; also as the plain dict that safetensors, DCP and FSDP give."""
    model, state = quantized(other), quantized(one).state_dict()
    for found in (state, dict(state)):
        with pytest.raises((RuntimeError, ValueError), match=r"format|torch\.int8"):
            model.load_state_dict(found)


class Held(Buffers):
    """A scale, and perhaps some codes."""

    def __init__(self, fmt: str = "some", codes: bool = True):
        super().__init__()
        self.fmt = fmt
        self.register_buffer("scale", torch.tensor([0.1, 0.2]))
        self.register_buffer("codes", torch.tensor([1, 2], dtype=torch.uint8) if codes else None)


def test_no_conversion_reaches_a_buffer() -> None:
    model = nn.Sequential(Held(), nn.Linear(2, 2))
    scale = model[0].scale.clone()
    for convert in (model.half, model.double, model.bfloat16, model.float):
        convert()
        assert torch.equal(model[0].scale, scale)
        assert (model[0].scale.dtype, model[0].codes.dtype) == (torch.float32, torch.uint8)
    model.to(device="meta", dtype=torch.float16)
    assert model[0].scale.is_meta
    assert model[0].scale.dtype == torch.float32
    assert model[1].weight.dtype == torch.float16


def test_the_state_says_the_format() -> None:
    state = Held("here").state_dict()
    assert sorted(state) == ["_extra_state", "codes", "scale"]
    assert bytes(state["_extra_state"].tolist()) == b"here"
    Held("here").load_state_dict(state)
    with pytest.raises(RuntimeError, match="is in format there, the state in here"):
        Held("there").load_state_dict(state)


def test_a_state_without_the_format_loads_but_no_other_dtype() -> None:
    """Such as one of another tool, which knows of tensors alone."""
    held, state = Held(), Held().state_dict()
    del state["_extra_state"]
    state["scale"] = torch.tensor([3.0, 4.0])
    held.load_state_dict(state, strict=False)
    assert held.scale.tolist() == [3.0, 4.0]
    state["scale"] = state["scale"].half()
    with pytest.raises(RuntimeError, match=r"scale is torch\.float32, the state's torch\.float16"):
        held.load_state_dict(state, strict=False)
    assert held.scale.tolist() == [3.0, 4.0]


def test_absent_buffers_stay_absent() -> None:
    held = Held(codes=False).half()
    assert held.codes is None
    assert sorted(held.state_dict()) == ["_extra_state", "scale"]
