# SPDX-License-Identifier: BSD-3-Clause
"""The ledger of a graph: what its steps said, or what its nodes show."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.support import adopt_producers as producers
from tests.support import graph_models as models


@pytest.mark.slow
def test_every_layer_and_parameter_is_there():
    model, program, _ = models.bert()
    recipe = bs.Recipe("int8_channel", skip=["encoder.layer.0.attention"])
    ledger = bs.graph.ledger(bs.graph.convert(bs.graph.prepare(program, recipe)))
    theirs = bs.quantize_(copy.deepcopy(model), recipe)
    assert {e.name: e.status for e in ledger} == {e.name: e.status for e in theirs}
    assert ledger.bytes_before == theirs.bytes_before and ledger.bytes_after == theirs.bytes_after


@pytest.mark.slow
def test_of_a_program_that_came_quantized():
    model, _, batches = models.net()
    model = copy.deepcopy(model)
    bs.quantize_(model, bs.Recipe("mxfp8", "mxfp8", skip=["fc"]))
    program = torch.export.export(model, batches[0])
    ledger = bs.graph.ledger(program)
    assert {e.name for e in ledger.quantized} == {"c1", "c2", "up", "c3", "c4"}
    codes = model.c1.weight
    assert ledger["c1"].weight == codes.fmt and ledger["c1"].bytes_after == codes.nbytes
    assert ledger["fc.weight"].status == "kept"


@pytest.mark.slow
def test_scales_of_activations_are_no_parameters():
    """Of whatever rank: in adopted graphs they have the activation's, in ours they are reshaped."""
    x = producers.example()
    for program in (
        producers.pt2e(producers.Small(), x),
        bs.graph.fuse(producers.pt2e(producers.Small(), x)),
        torch.export.export(calibrated(x), x),
    ):
        ledger = bs.graph.ledger(program)
        assert [e.name for e in ledger if e.name.endswith(("scale", "zero_point"))] == []
    assert {e.name for e in bs.graph.ledger(bs.graph.fuse(program))} == {"one", "two", "last"}


def calibrated(x):
    model = producers.Small().eval()
    bs.calibrate(model, [x[0]], bs.Recipe("int8_channel", "int8:tensor:fp32"), progress=False)
    return model


def test_of_a_float_program_and_of_none():
    ledger = bs.graph.ledger(models.net()[1])
    assert not ledger.quantized and ledger["fc.weight"].reason == "float in the program"
    with pytest.raises(TypeError, match="expected a program, found a Linear"):
        bs.graph.ledger(nn.Linear(2, 2))  # type: ignore[arg-type]
