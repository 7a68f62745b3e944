"""A directory and a model in memory: the same tensors are quantized, to the same bits."""

import warnings

import pytest

import blockscale as bs
from tests.files.renaming.hub import build, save
from tests.files.renaming.oracle import differing
from tests.files.renaming.test_renamed import CASES


@pytest.mark.parametrize(("name", "fmt"), CASES)
def test_both_flows_give_one_model(name, fmt, tmp_path):
    model = build(name)
    names = list(model.state_dict())
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", fmt)
    found = bs.load(build(name, 1), tmp_path / "quantized")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.quantize_(model, fmt)
    assert differing(found, model, names) == []
