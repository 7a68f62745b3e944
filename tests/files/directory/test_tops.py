# SPDX-License-Identifier: BSD-3-Clause
"""A directory's tensors share their outer scale across shards, and have the bits of quantize_."""

import pathlib

import pytest
import torch
from safetensors.torch import load_file

import blockscale as bs
from blockscale.files.slabs.quantize_tensor import TensorQuantizer
from tests.support.file_models import write_model

SIZES = {"q_proj": (24, 1.0), "k_proj": (8, 7.0), "v_proj": (8, 0.1)}


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        f"model.layers.{i}.self_attn.{name}.weight": torch.randn(rows, 32) * size
        for i in (0, 1)
        for name, (rows, size) in SIZES.items()
    }


def written(path: pathlib.Path) -> dict[str, torch.Tensor]:
    return {k: v for file in path.glob("*.safetensors") for k, v in load_file(file).items()}


def check(path: pathlib.Path, fmt: str) -> None:
    found, floats = written(path), tensors()
    for i in (0, 1):
        names = [f"model.layers.{i}.self_attn.{name}.weight" for name in SIZES]
        whole = bs.quantize(torch.cat([floats[name] for name in names]), fmt)
        assert torch.equal(torch.cat([found[f"{n}.codes"] for n in names]), whole.packed)
        assert torch.equal(torch.cat([found[f"{n}.scale"] for n in names]), whole.qparams.scale)
        assert all(torch.equal(found[f"{n}.outer"], whole.qparams.outer) for n in names)


@pytest.mark.parametrize(
    "fmt", ["nvfp4", "e2m1:group16:e4m3/inv", "uint4:group8:(e4m3:tensor:fp32):asym"]
)
def test_the_bits_are_those_of_the_joined_weight(fmt: str, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", tensors(), shards=3)
    ledger = bs.quantize_directory(model, tmp_path / "out", fmt)
    check(tmp_path / "out", fmt)
    entry = ledger["model.layers.0.self_attn.q_proj.weight"]
    assert entry.details == "outer scale shared with k_proj, v_proj"


def test_turned_off_and_partners_in_other_formats(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", tensors())
    bs.quantize_directory(model, tmp_path / "off", bs.Recipe("nvfp4", fused=False))
    name = "model.layers.0.self_attn.v_proj.weight"
    assert torch.equal(
        written(tmp_path / "off")[f"{name}.codes"], bs.quantize(tensors()[name], "nvfp4").packed
    )
    recipe = bs.Recipe("nvfp4", rules={"*.v_proj": "mxfp4"})
    ledger = bs.quantize_directory(model, tmp_path / "other", recipe)
    told = ledger["model.layers.0.self_attn.q_proj.weight"].details
    assert told == (
        "outer scale shared with k_proj, outer scale not shared with v_proj: not quantized in the "
        "same format"
    )


def test_a_profile_shares_it(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", tensors())
    profile = bs.profile("modelopt.nvfp4")
    bs.quantize_directory(model, tmp_path / "out", bs.Recipe(profile))
    found, floats = written(tmp_path / "out"), tensors()
    names = [f"model.layers.0.self_attn.{name}.weight" for name in SIZES]
    whole = bs.quantize(torch.cat([floats[name] for name in names]), profile)
    assert torch.equal(torch.cat([found[f"{n}.codes"] for n in names]), whole.packed)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(40, 32), (3, 40, 32), (3, 400, 32)])
@pytest.mark.parametrize("elements", [64, 1 << 14])
def test_slabs_beside_a_given_top(shape: tuple[int, ...], elements: int) -> None:
    """However a tensor is cut; of a stack, each matrix beside its own."""
    torch.manual_seed(0)
    x, other = torch.randn(shape), torch.randn(shape) * 5
    fmt = bs.parse("nvfp4" if len(shape) == 2 else "e2m1:group16:(e4m3:block*x*:fp32)")

    def quantizer(values: torch.Tensor) -> TensorQuantizer:
        def read(cuts, slab):
            if cuts.dim:
                return values[slab.matrix : slab.matrix + 1, slab.start : slab.stop]
            return values.reshape(cuts.shape)[slab.start : slab.stop]

        return TensorQuantizer(read, tuple(shape), fmt, 0, elements)

    top = torch.maximum(quantizer(x).top(), quantizer(other).top())
    sharing = quantizer(x)
    sharing.share(top)
    pieces = list(sharing.pieces())
    whole = bs.quantize(torch.cat([x, other], -2), fmt)
    rows = shape[-2]
    codes = torch.cat([p.rows.reshape(-1, 16) for p in pieces if p.part == "codes"])
    assert torch.equal(codes, whole.packed[..., :rows, :].reshape(-1, 16))
    outer = torch.cat([p.rows.reshape(-1) for p in pieces if p.part == "outer"])
    assert torch.equal(outer, whole.qparams.outer.reshape(-1))
    scales = torch.cat([p.rows.reshape(-1, 2) for p in pieces if p.part == "scale"])
    assert torch.equal(scales, whole.qparams.scale[..., :rows, :].reshape(-1, 2))


def test_a_run_that_was_killed_goes_on_with_the_same_scale(tmp_path, monkeypatch) -> None:
    """The partners of what is left are written already."""
    from blockscale.files.directory import shard

    model = write_model(tmp_path / "model", tensors(), shards=3)
    calls, write = [], shard.write_tensor

    def killed(*args: object) -> tuple[str, ...]:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(shard, "write_tensor", killed)
    with pytest.raises(KeyboardInterrupt):
        bs.quantize_directory(model, tmp_path / "out", "nvfp4")
    monkeypatch.setattr(shard, "write_tensor", write)
    bs.quantize_directory(model, tmp_path / "out", "nvfp4")
    check(tmp_path / "out", "nvfp4")
