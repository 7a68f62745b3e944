"""Profiles through the public function, and on the same bits everywhere."""

import pytest
import torch

import blockscale as bs
from blockscale.core import profiles
from blockscale.core.profiles.quantize import quantize


@pytest.mark.some(4)
@pytest.mark.parametrize("name", profiles.names())
def test_the_public_function_packs_the_same_codes(name: str) -> None:
    x = torch.randn(6, 256)
    profile = bs.profile(name)
    q = bs.quantize(x.requires_grad_(), profile)
    codes, qparams, fmt = quantize(x.detach(), profile)
    assert torch.equal(q.codes, codes)
    assert torch.equal(q.qparams.scale, qparams.scale)
    assert q.format == fmt


@pytest.mark.parametrize("name", ["torchao.int8_asym"])
def test_it_compiles(name: str) -> None:
    profile = bs.profile(name)

    def values(x: torch.Tensor) -> torch.Tensor:
        codes, qparams, _ = quantize(x, profile)
        return codes.float().sum() + qparams.scale.float().sum()

    x = torch.randn(4, 64)
    assert torch.equal(torch.compile(values, backend="eager")(x), values(x))


def test_its_tensors_are_read_as_any_other(tmp_path) -> None:
    q = bs.quantize(torch.randn(8, 64), bs.profile("torchao.intx4"))
    assert str(q.format) == "int4:group32:fp32:full"
    torch.save(q, tmp_path / "q.pt")
    again = torch.load(tmp_path / "q.pt")
    assert torch.equal(again.dequantize(), q.dequantize())
    same = bs.quantize(q.dequantize(), q.format, q.scale)  # values lie on the grid
    assert torch.equal(same.codes, q.codes)
