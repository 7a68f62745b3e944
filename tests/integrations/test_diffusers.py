"""Models of diffusers: saved with bs.save, and refused by save_pretrained."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.integrations.diffusers import Unsaved, tell_diffusers


@pytest.fixture
def mixin(monkeypatch: pytest.MonkeyPatch) -> type[nn.Module]:
    """diffusers' ModelMixin as far as it is asked for."""

    class ModelMixin(nn.Module):
        pass

    library = type(sys)("diffusers.models.modeling_utils")
    library.ModelMixin = ModelMixin  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library.__name__, library)
    return ModelMixin


def test_its_models_and_no_others(mixin: type[nn.Module]) -> None:
    inner, outer = mixin(), nn.Sequential(nn.Linear(32, 8))
    outer.append(inner)
    tell_diffusers(outer, None)
    assert isinstance(inner.hf_quantizer, Unsaved)
    assert not hasattr(outer, "hf_quantizer")
    kept: Any = mixin()
    kept.hf_quantizer = "another"
    tell_diffusers(kept, None)
    assert kept.hf_quantizer == "another"


@pytest.mark.slow
def test_a_unet(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")

    def make() -> Any:
        torch.manual_seed(0)
        return diffusers.UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
            block_out_channels=(32, 32), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip

    unet = make()
    bs.quantize_(unet, "mxfp4")
    with pytest.raises(ValueError, match=r"write it with bs\.save, and read it"):
        unet.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    bs.save(unet, tmp_path / "unet.safetensors")
    again = bs.load(make(), tmp_path / "unet.safetensors")
    x = torch.randn(1, 1, 8, 8)
    assert torch.equal(unet.eval()(x, 1).sample, again.eval()(x, 1).sample)
