# SPDX-License-Identifier: BSD-3-Clause
"""Each kind of Before changes input and weight, and not their product."""

import pathlib
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers import before
from blockscale.layers.before import Before, BufferSpecs, Scale
from tests.layers.before.kinds import (
    DTYPES,
    K,
    kinds,
    same,
    whole,
)


@pytest.fixture
def reference():
    """Kernels may sum in another order; these tests are about the bits."""
    with bs.use("reference"):
        yield


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("shape", [(K,), (5, K), (2, 3, K), (0, K), (2, 0, K)])
def test_the_product_stays_and_the_weight_comes_back(shape: tuple[int, ...]) -> None:
    for each in kinds():
        for width in (K, 2 * K):  # 2 K: a kernel of two places
            x, w = whole(*shape[:-1], width // K, K), whole(7, width)
            moved = each.to_weight(w)
            found = each(x).flatten(-2) @ moved.T
            same(found, x.flatten(-2) @ w.T)
            same(each.from_weight(moved), w)
        same(each.to_weight(torch.zeros(0, K)), torch.zeros(0, K))


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("dtype", DTYPES)
def test_float32_inside_and_one_rounding(dtype: torch.dtype) -> None:
    x, w = torch.randn(9, K).to(dtype), torch.randn(3, K).to(dtype)
    for each in [Scale(torch.rand(K) + 0.1), *kinds()]:
        same(each(x), each(x.float()).to(dtype))
        same(each.to_weight(w), each.to_weight(w.float()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(each(x), each(x.float()).to(dtype))


@pytest.mark.usefixtures("reference")
def test_spellings() -> None:
    for each in kinds():
        buffers = dict(each.named_buffers())
        stored = {name: (b.dtype, tuple(b.shape)) for name, b in buffers.items()}
        assert before.stored_buffers(each.fmt, K) == stored
        other = before.restore(each.fmt, K, buffers)
        x = whole(3, K)
        same(other(x), each(x))
        assert (repr(other), other.nbytes) == (repr(each), sum(b.nbytes for b in buffers.values()))
    assert {"order", "scale", "rotate:2", "rotate:2:signs"} <= {each.fmt for each in kinds()}
    for text in ("", "scale:2", "rotate", "rotate:", "rotate:+8", "rotate:08", "rotate:8:",
                 "rotate:8:sign", "rotate:８", "rotate:²", "turn:8",
                 f"rotate:{10**30}"):  # fmt: skip
        with pytest.raises(
            ValueError, match="choose from order, scale, rotate:SIZE, rotate:SIZE:signs"
        ):
            before.stored_buffers(text, K)
    with pytest.raises(ValueError, match="divides 24 features, found 16"):
        before.stored_buffers("rotate:16", K)


class Negate(Before):
    """x' = -x, w' = -w: a kind that nothing else knows of."""

    name = SPELLINGS = "negate"

    def __init__(self, features: int):
        super().__init__()
        self.features, self.fmt = features, self.name

    @classmethod
    def stored_buffers(cls, settings: str | None, features: int) -> BufferSpecs | None:
        return {} if settings is None else None

    @classmethod
    def restore(cls, settings: str | None, features: int, buffers: Mapping[str, Tensor]) -> Before:
        return cls(features)

    def forward(self, x: Tensor) -> Tensor:
        return (-self._input(x)).to(x.dtype)

    def to_weight(self, weight: Tensor) -> Tensor:
        return -self._weight(weight).reshape(weight.shape)

    from_weight = to_weight


@pytest.fixture
def negate() -> Iterator[None]:
    """As if its file lay in blockscale/layers/before."""
    before.kinds()["negate"] = Negate
    yield
    del before.kinds()["negate"]


@pytest.mark.usefixtures("reference")
def test_a_kind_is_found_by_its_name() -> None:
    folder = pathlib.Path(before.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "before"}
    assert set(before.kinds()) == names == {"order", "scale", "rotate"}
    assert all(kind.name == name for name, kind in before.kinds().items())


@pytest.mark.usefixtures("reference")
def test_a_new_kind_is_saved_and_loaded(negate: None, tmp_path: pathlib.Path) -> None:
    path, x = tmp_path / "model.safetensors", whole(3, K)
    model, again = (nn.Sequential(nn.Linear(K, 4)) for _ in range(2))
    weight = model[0].weight.detach().clone()
    bs.quantize_(model, "int8", before={"0": Negate(K)})
    codes = bs.quantize(-weight, "int8")
    assert torch.equal(model[0].weight.codes, codes.packed)
    same(model[0].dequantize_weight(), -codes.dequantize())
    bs.save(model, path)
    bs.load(again, path)
    assert isinstance(again[0].before, Negate)
    same(again(x), model(x))
    with pytest.raises(
        ValueError, match="unknown transform 'negate:2'; choose from negate, order, scale,"
    ):
        before.stored_buffers("negate:2", K)
