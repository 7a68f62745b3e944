"""Inputs of compressed-tensors' layers: read back as they were written, or a warning."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.layout import Found, Weight
from blockscale.export.checkpoints.layouts.compressed_tensors.inputs import find_inputs

pytestmark = pytest.mark.filterwarnings("ignore:.*(transformers|reciprocal|vLLM)")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj = nn.Linear(64, 64), nn.Linear(64, 64)
        self.k_proj.weight.data *= 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x) * self.k_proj(x)


def model() -> nn.Module:
    return nn.Sequential(Attention(), nn.Linear(64, 8)).eval()


BATCHES = [torch.randn(6, 64, generator=torch.Generator().manual_seed(i)) for i in range(2)]


@pytest.mark.parametrize(
    ("weight", "given", "read"),
    [
        ("e2m1:group16:e4m3/inv", "e2m1:group16:e4m3/inv/given", "e2m1:group16:e4m3/inv/given"),
        ("nvfp4", "e2m1:group16:e4m3/given", "e2m1:group16:e4m3/inv/given"),
        ("mxfp4", "mxfp4", "e2m1:group32:e8m0/floor"),
        ("mxfp8", "mxfp8", "e4m3:group32:e8m0/floor"),
    ],
)
def test_there_and_back(weight: str, given: str, read: str, tmp_path: Path) -> None:
    ours = model()
    ledger = bs.calibrate(ours, BATCHES, bs.Recipe(weight, given, skip=["1"]), progress=False)
    bs.export.compressed_tensors(ours, tmp_path / "out")
    back = bs.load(model(), tmp_path / "out")
    assert str(back[0].q_proj.input.format) == read
    x = torch.randn(5, 64)
    if weight != "nvfp4":  # whose outer scales are written as reciprocals
        assert torch.equal(back(x), ours(x))
    torch.testing.assert_close(back(x), ours(x), rtol=0.1, atol=0.1)
    if "given" in given:
        outer = float(ours[0].q_proj.input.outer)
        largest = max(float(batch.abs().max()) for batch in BATCHES)
        expected = 2688 / largest if "inv" in given else largest / 2688
        assert outer == pytest.approx(expected, rel=1e-6)
        assert outer == float(ours[0].k_proj.input.outer)
        assert "static outer scale of its input by min_max" in ledger["0.q_proj"].details


def test_what_the_directory_says(tmp_path: Path) -> None:
    ours = model()
    recipe = bs.Recipe("nvfp4", input="e2m1:group16:e4m3/given", skip=["1"])
    bs.calibrate(ours, BATCHES, recipe, "percentile", progress=False)
    bs.export.compressed_tensors(ours, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    told = config["config_groups"]["group_0"]["input_activations"]
    assert (told["dynamic"], told["strategy"], told["group_size"]) == ("local", "tensor_group", 16)
    from safetensors.torch import load_file

    divisor = load_file(tmp_path / "out" / "model.safetensors")["0.q_proj.input_global_scale"]
    largest = max(float(batch.abs().max()) for batch in BATCHES)
    assert tuple(divisor.shape) == (1,) and float(divisor) == pytest.approx(448 * 6 / largest)


def test_other_inputs_stay_in_float_and_a_warning_says_so(tmp_path: Path) -> None:
    """Static scales are no tensors of the model: such directories could not be loaded at all."""
    ours = model()
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32", skip=["1"])
    bs.calibrate(ours, BATCHES, recipe, progress=False)
    bs.export.compressed_tensors(ours, tmp_path / "out")
    with pytest.warns(
        UserWarning, match=r"inputs of 0.k_proj and 1 more are quantized by its read"
    ):
        back = bs.load(model(), tmp_path / "out")
    assert back[0].q_proj.input is None


def test_weights_alone_have_no_warning(tmp_path: Path) -> None:
    ours = model()
    bs.quantize_(ours, bs.Recipe("int4:group32:fp32", skip=["1"]))
    bs.export.compressed_tensors(ours, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bs.load(model(), tmp_path / "out")


@pytest.mark.parametrize(
    "told",
    [
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},  # no scale
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "dynamic": True},
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True},
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "dynamic": False},
        {},
    ],
)
def test_what_is_not_read(told: dict[str, object]) -> None:
    found = Found({"a.weight": Weight("any", (2, 32), {})})
    config = {"config_groups": {"g": {"targets": ["Linear"], "input_activations": told or None}}}
    find_inputs(found, {}, config)
    assert not found.inputs and len(found.warnings) == bool(told)
