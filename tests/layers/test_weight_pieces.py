# SPDX-License-Identifier: BSD-3-Clause
"""Views and pieces that keep codes, and those that cannot."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers import weight_pieces as pieces
from blockscale.layers.store import QWeight, weights_of
from blockscale.ops import primitives

KEPT = {
    "t": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "permute": lambda w: w.permute(1, 0),
    "transpose": lambda w: w.transpose(-1, -2),
    "twice": lambda w: w.t().t(),
    "rows": lambda w: w[2:6],
    "one slice": lambda w: w.narrow(0, 3, 2),
    "of rows": lambda w: w[2:6][1:],
    "split": lambda w: w.split(3)[1],
    "split into": lambda w: w.split([5, 3])[1],
    "chunk": lambda w: w.chunk(2)[1],
    "columns of the transposed": lambda w: w.t()[:, 1:4],
    "all": lambda w: w[:],
    "same view": lambda w: w.view(8, 64),
    "detached": lambda w: w.detach(),
}
FLOATS = {
    "columns": lambda w: w[:, 3:],
    "every other": lambda w: w[::2],
    "a row": lambda w: w[3],
    "reshaped": lambda w: w.reshape(4, 128),
    "diagonal": lambda w: w.diagonal(),
    "unsqueezed": lambda w: w[None],
}


@pytest.mark.parametrize("kind", [*KEPT, *FLOATS])
@pytest.mark.parametrize("fmt", ["mxfp4", "int8_channel", "nvfp4"])
def test_matrices(fmt: str, kind: str) -> None:
    weight = QWeight.quantize(torch.randn(8, 64), bs.parse(fmt))
    run = (KEPT | FLOATS)[kind]
    found, expected = run(weight.read()), run(weight.dequantize())
    assert found.shape == expected.shape
    assert torch.equal(found + 0, expected)
    assert (found.source.operand is not None) == (kind in KEPT)
    assert torch.equal(found.contiguous() + 0, expected)
    with pytest.raises(RuntimeError, match="its codes are fixed"):
        found.zero_()


@pytest.mark.parametrize("fmt", ["mxfp4", "int8:token:fp32", "int8:tensor:fp32"])
def test_stacks(fmt: str) -> None:
    weight = QWeight.quantize(torch.randn(3, 8, 64), bs.parse(fmt))
    read, values = weight.read(), weight.dequantize()
    for one, expected in (
        (read[1], values[1]), (read[-1], values[-1]), (read.unbind(0)[2], values[2]),
        (read[1:], values[1:]), (read.mT[0], values.mT[0]), (read[0].t(), values[0].t()),
        (read.transpose(1, 2)[1], values.transpose(1, 2)[1]),
    ):  # fmt: skip
        assert one.source.operand is not None
        assert torch.equal(one + 0, expected)
    assert torch.equal(read[0, 1] + 0, values[0, 1])
    assert torch.equal(read[torch.tensor([2, 0])] + 0, values[[2, 0]])


# Stacks that are read: every way through them meets codes, and only those of what is asked for.


class Experts(nn.Module):
    """Stacks [E, n, k] and, turned, [E, k, n]."""

    def __init__(self, experts: int = 4, n: int = 32, k: int = 64):
        super().__init__()
        torch.manual_seed(3)
        self.plain = nn.Parameter(torch.randn(experts, n, k))
        self.turned = nn.Parameter(torch.randn(experts, k, n))


@pytest.fixture(params=["mxfp4", "nvfp4", "int8:tensor:fp32", "int4:group48:fp32"])
def model(request: pytest.FixtureRequest) -> Experts:
    made = Experts()
    bs.quantize_(made, request.param)
    return made


class Counted:
    """Elements that are dequantized."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.elements = 0
        real: Callable[..., Tensor] = primitives.dequantize
        for where in ("blockscale.ops.tensor.primitives", "blockscale.ops.grouped_linear"):
            monkeypatch.setattr(f"{where}.dequantize", self._counting(real))
        monkeypatch.setattr("blockscale.layers.weight_pieces.dequantize", self._counting(real))

    def _counting(self, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def dequantize(*args: object) -> Tensor:
            values = real(*args)
            self.elements += values.numel()
            return values

        return dequantize


def dense(model: Experts) -> dict[str, Tensor]:
    return {name: weight.dequantize() for name, weight in weights_of(model).items()}


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_one_expert_by_number_and_by_tensor(
    model: Experts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F.linear and @ with one expert: a kernel call, nothing is dequantized."""
    floats, counted, x = dense(model), Counted(monkeypatch), torch.randn(5, 64)
    for index in (0, -1, torch.tensor(2)):
        close(F.linear(x, model.plain[index]), F.linear(x, floats["plain"][index]))
    assert counted.elements == 0
    one = model.plain[1]
    assert torch.equal(one + 0, floats["plain"][1])
    assert counted.elements == one.numel()


def test_grouped_mm(model: Experts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole stack, as `grouped_mm` of transformers reads it; experts 0 and 2 have no token."""
    floats, counted, x = dense(model), Counted(monkeypatch), torch.randn(7, 64)
    ends = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    got = F.grouped_mm(x, model.plain.transpose(-2, -1), offs=ends)
    close(got[:3], F.linear(x[:3], floats["plain"][1]))
    close(got[3:], F.linear(x[3:], floats["plain"][3]))
    assert counted.elements == 0


def test_chosen_matrices(model: Experts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix for each token, as `batched_mm` reads them."""
    floats, counted, x = dense(model), Counted(monkeypatch), torch.randn(5, 64)
    chosen = torch.tensor([3, 1, 1, -1, 3])
    picked = model.plain[chosen]
    assert picked.shape == (5, 32, 64)
    got = torch.bmm(picked, x.unsqueeze(-1)).squeeze(-1)
    close(got, torch.bmm(floats["plain"][chosen], x.unsqueeze(-1)).squeeze(-1))
    assert counted.elements == 0
    assert torch.equal(picked * 1, floats["plain"][chosen])
    assert counted.elements == 2 * 32 * 64  # experts 1 and 3, each once
    assert torch.equal(model.plain.index_select(0, chosen % 4) * 1, floats["plain"][chosen])


def turned_model() -> tuple[Experts, Tensor]:
    """A model whose second stack is stored turned, as gpt-oss has its own."""
    model = Experts()
    model.is_transposed = True  # type: ignore[assignment]
    bs.quantize_(model, "nvfp4")
    weight = weights_of(model)["turned"]
    assert weight.layout == "transposed"
    return model, weight.dequantize()


def test_turned_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """x @ W[e], and products of all or of chosen experts, by codes [E, n, k]."""
    model, floats = turned_model()
    counted, x, chosen = Counted(monkeypatch), torch.randn(4, 5, 64), torch.tensor([1, 0, 1, 3])
    close(x[0] @ model.turned[2], x[0] @ floats[2])
    close(torch.bmm(x, model.turned), torch.bmm(x, floats))
    close(torch.bmm(x, model.turned[chosen]), torch.bmm(x, floats[chosen]))
    ends = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    got = F.grouped_mm(x[0], model.turned, offs=ends)
    close(got[2:], x[0][2:] @ floats[3])
    assert counted.elements == 0
    assert torch.equal(model.turned[chosen] * 1, floats[chosen])


def test_what_has_no_codes_of_its_own_is_dequantized_whole() -> None:
    """One scale for two of four matrices: right, if slower."""
    model = Experts()
    bs.quantize_(model, "mxfp4")
    one = bs.quantize(torch.randn(4, 32, 64), "int8:block2x32x64:fp32")
    weight = weights_of(model)["plain"]
    weight.format, weight.fmt = one.format, str(one.format)
    weight.codes, weight.scale = one.packed, one.qparams.scale
    floats, x = one.dequantize(), torch.randn(5, 64)
    close(F.linear(x, model.plain[1]), F.linear(x, floats[1]))
    assert torch.equal(model.plain[torch.tensor([2, 2])] * 1, floats[[2, 2]])
    ends = torch.tensor([0, 5, 5, 5], dtype=torch.int32)
    close(F.grouped_mm(x, model.plain.mT, offs=ends), F.linear(x, floats[1]))


def test_other_dtypes_and_arguments_take_the_floats() -> None:
    """A product that our kernels would give another dtype is torch's own."""
    model = Experts().to(torch.bfloat16)
    bs.quantize_(model, "mxfp4")
    floats, x = dense(model), torch.randn(3, 64)
    assert pieces._grouped_mm(x, model.plain.mT, torch.tensor([3, 3, 3, 3])) is None
    assert pieces._bmm(x.expand(4, 3, 64), model.plain.mT) is None
    x = x.to(torch.bfloat16)
    got = torch.bmm(x.expand(4, 3, 64), model.plain.mT)
    torch.testing.assert_close(got, torch.bmm(x.expand(4, 3, 64), floats["plain"].mT))
    mask = torch.tensor([True, False, True, False])
    assert torch.equal(model.plain[mask] * 1, floats["plain"][mask])


def test_gradients_reach_the_input(model: Experts) -> None:
    """Adapters before and after experts train: by the dequantized product."""
    floats = dense(model)
    ends = torch.tensor([1, 3, 3, 7], dtype=torch.int32)
    gradients = []
    for plain in (model.plain, floats["plain"]):
        x = torch.linspace(-1, 1, 7 * 64).reshape(7, 64).requires_grad_()
        F.grouped_mm(x, plain.transpose(-2, -1), offs=ends).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-2)
