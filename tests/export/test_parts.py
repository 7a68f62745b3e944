# SPDX-License-Identifier: BSD-3-Clause
"""Exported programs of layers in formats with every part beside their codes."""

import io

import pytest
import torch

import blockscale as bs
from tests.support.layer_formats import FORMATS, REFERENCE
from tests.support.layer_models import IDS, small

pytestmark = pytest.mark.filterwarnings(REFERENCE)


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_program_has_every_part_and_the_same_bits(fmt: str) -> None:
    torch.manual_seed(0)
    model, file = small().eval(), io.BytesIO()
    bs.quantize_(model, fmt)
    made = torch.export.export(model, (IDS,))
    parts = {f"1.weight.{part}" for part in ("codes", *bs.parse(fmt).parts)}
    assert parts <= made.state_dict.keys()
    torch.export.save(made, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert torch.equal(loaded.module()(IDS), model(IDS))


@pytest.mark.slow
def test_inputs_with_offsets() -> None:
    torch.manual_seed(0)
    model, recipe = small().eval(), bs.Recipe("int8_channel", input="uint8:tensor:fp32:offset")
    bs.calibrate(model, [(IDS,)], recipe, "min_max", progress=False)
    made = torch.export.export(model, (IDS,))
    assert torch.equal(made.module()(IDS), model(IDS))
