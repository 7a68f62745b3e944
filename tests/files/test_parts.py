# SPDX-License-Identifier: BSD-3-Clause
"""Files of models in formats with every part beside their codes: the same bits, also streamed."""

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from blockscale.export.checkpoints.comparing import compare
from blockscale.files.inspect import inspect
from tests.support.layer_formats import FORMATS, REFERENCE
from tests.support.layer_models import IDS, bits, small

pytestmark = pytest.mark.filterwarnings(REFERENCE)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_save_load_and_compare(fmt: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made, floats, file = small().eval(), tmp_path / "float.safetensors", tmp_path / "q.safetensors"
    bs.save(made, floats)
    dense = {name: made.get_submodule(name).weight.detach().clone() for name in ("1", "5", "8")}
    bs.quantize_(made, fmt)
    bs.save(made, file)
    loaded = bs.load(small().eval(), file)
    assert bits(loaded.state_dict()) == bits(made.state_dict())
    assert torch.equal(loaded(IDS), made(IDS))
    for elements in (1 << 17, 500):
        found = {each.name: each for each in compare(floats, file, elements=elements).differences}
        for name, weight in dense.items():
            error = weight.double() - made.get_submodule(name).dequantize_weight()
            assert found[f"{name}.weight"].max_error == float(error.abs().amax())
    assert all(each.equal for each in compare(file, file, elements=500).differences)
    rows = {row.name: row for row in inspect(file).rows}
    assert rows["1.weight"].nbytes == made[1].weight.nbytes


@pytest.mark.some(6)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_directory_has_the_bits_of_the_model(fmt: str, tmp_path: Path, monkeypatch) -> None:
    torch.manual_seed(0)
    made, source = small().eval(), tmp_path / "model"
    source.mkdir()
    tensors = {name: t.contiguous() for name, t in made.state_dict().items()}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr("blockscale.files.slabs.cutting.SLAB", 300)
    bs.quantize_directory(source, tmp_path / "out", fmt)
    loaded = bs.load(small().eval(), tmp_path / "out")
    bs.quantize_(made, fmt)
    assert bits(loaded.state_dict()) == bits(made.state_dict())


def test_static_inputs_with_offsets_are_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made, fmt = small().eval(), "uint8:tensor:fp32:offset"
    recipe = bs.Recipe("int8_channel", input=fmt)
    bs.calibrate(made, [(IDS,)], recipe, "min_max", progress=False)
    bs.save(made, tmp_path / "model.safetensors")
    loaded = bs.load(small().eval(), tmp_path / "model.safetensors")
    assert {"offset", "scale"} <= dict(loaded[1].input.named_buffers()).keys()
    assert bits(loaded.state_dict()) == bits(made.state_dict())
    assert torch.equal(loaded(IDS), made(IDS))


def test_a_directory_in_a_format_that_nobody_chooses_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    save_file({"a.weight": torch.randn(4, 32)}, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"a\.weight .*must be supplied"):
        bs.quantize_directory(source, tmp_path / "out", "int8:group32:e8m0/given")
    assert not (tmp_path / "out").exists()


def test_a_given_format_is_read(tmp_path: Path) -> None:
    made, fmt = torch.nn.Sequential(torch.nn.Linear(64, 8)), "int8:group32:e8m0/given"
    q = bs.quantize(made[0].weight.detach(), "int8:group32:e8m0")
    given = bs.QTensor(q.packed, q.qparams, bs.parse(fmt), q.size)
    bs.quantize_(made, fmt, weights={"0": given})
    bs.save(made, tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = bs.load(
            torch.nn.Sequential(torch.nn.Linear(64, 8)), tmp_path / "model.safetensors"
        )
    assert loaded[0].weight.fmt == fmt
    assert torch.equal(loaded[0].dequantize_weight(), q.dequantize())
