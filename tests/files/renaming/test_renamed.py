"""Directories in the hub's names load into the models that wrote them."""

import warnings

import pytest
import torch
import transformers

import blockscale as bs
from tests.files.renaming.hub import MODELS, build, save
from tests.files.renaming.oracle import dequantized, differing

FORMATS = ["mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32"]


def loaded(model, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # routers and the like that are quantized, not held
        return bs.load(model, path)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_loads_the_pieces(name, fmt, tmp_path):
    """The oracle is transformers' own loader, on the pieces dequantized one by one."""
    model = build(name)
    names = list(model.state_dict())
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", fmt)
    found = loaded(build(name, 1), tmp_path / "quantized")
    pieces = dequantized(tmp_path / "quantized", tmp_path / "pieces")
    expected = getattr(transformers, MODELS[name][0]).from_pretrained(pieces, dtype=torch.float32)
    assert differing(found, expected, names) == []
    assert differing(found, model, names)  # something is quantized
