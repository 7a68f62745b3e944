# SPDX-License-Identifier: BSD-3-Clause
"""Buffers that keep their dtype and know in which format they are."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import blockscale as bs
from blockscale.layers.buffers import Buffers
from tests.support.layer_models import (
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
    spelled = state["_extra_state"]
    assert bytes(spelled.flatten().tolist()).rstrip(b"\0") == b"here" and spelled.numel() == 256
    Held("here").load_state_dict(state)
    with pytest.raises(
        RuntimeError,
        match=("has the format there, and the state was saved with here"),
    ):
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


SAME_SHAPES = [("mxfp4", "int4:group32:e8m0/floor"), ("mxfp8", "mxfp8_e5m2"), ("int4", "uint4")]


@pytest.mark.parametrize(("here", "there"), SAME_SHAPES)
def test_a_distributed_checkpoint_of_another_format_writes_nothing(
    here: str, there: str, tmp_path: Path
) -> None:
    """torch.distributed.checkpoint writes into the model's own tensors: it has to see it before."""
    model, other = quantized(here), quantized(there)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that one process is no group
        dcp.save(other.state_dict(), checkpoint_id=tmp_path)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for state in (model.state_dict(), {"model": model}):
            with pytest.raises(
                dcp.api.CheckpointException, match=r"Size mismatch.*_extra_state|Missing key"
            ):
                dcp.load(state, checkpoint_id=tmp_path)
        assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
        dcp.load(quantized(there).state_dict(), checkpoint_id=tmp_path)


def test_each_format_has_sizes_of_its_own() -> None:
    sizes = {tuple(Held(str(bs.parse(name))).get_extra_state().shape) for name in bs.formats()}
    assert len(sizes) == len({str(bs.parse(name)) for name in bs.formats()})
    long = Held("x" * 300)
    assert long.get_extra_state().numel() == 512
    long.load_state_dict(long.state_dict())


def test_a_state_of_release_0_1() -> None:
    state = Held("here").state_dict()
    state["_extra_state"] = torch.tensor(list(b"here"), dtype=torch.uint8)
    Held("here").load_state_dict(state)
    with pytest.raises(
        RuntimeError,
        match=("has the format there, and the state was saved with here"),
    ):
        Held("there").load_state_dict(state)
