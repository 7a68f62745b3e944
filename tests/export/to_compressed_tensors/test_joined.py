"""What layers that servers join must agree in, before a directory is written."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs

pytestmark = pytest.mark.filterwarnings("ignore")  # of reciprocals that are not exact


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, size in (("q_proj", 1.0), ("k_proj", 7.0), ("v_proj", 0.1)):
            self.add_module(name, nn.Linear(64, 32, bias=False))
            self.get_submodule(name).weight.data *= size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x) + self.k_proj(x) + self.v_proj(x)


def test_one_divisor_for_all(tmp_path) -> None:
    """Also in its last bit, though the scales of each layer would do with others."""
    model = nn.ModuleDict({"attn": Attention()})
    bs.quantize_(model, "nvfp4")
    bs.export.compressed_tensors(model, tmp_path / "out")
    held = load_file(tmp_path / "out" / "model.safetensors")
    found = {float(held[f"attn.{n}_proj.weight_global_scale"]) for n in "qkv"}
    assert len(found) == 1


def test_layers_that_disagree_are_refused(tmp_path) -> None:
    model = nn.ModuleDict({"attn": Attention()})
    bs.quantize_(model, bs.Recipe("nvfp4", fused=False))
    with pytest.raises(ValueError, match=r"q_proj, k_proj, v_proj of attn have the outer scales"):
        bs.export.compressed_tensors(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_static_inputs_that_disagree_are_refused(tmp_path) -> None:
    model = nn.ModuleDict({"attn": Attention()})
    scales = {
        f"attn.{n}_proj": torch.full((1,), s) for n, s in (("q", 0.1), ("k", 0.1), ("v", 0.2))
    }
    bs.quantize_(model, bs.Recipe("int8_channel", input="int8:tensor:fp32"), input_scales=scales)
    with pytest.raises(ValueError, match="of attn have different static input scales"):
        bs.export.compressed_tensors(model, tmp_path / "out")
