# SPDX-License-Identifier: BSD-3-Clause
"""experts="all": an expert learns from every token of its layer, whoever it was routed to."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.layer import QLayer
from tests.support.mixtures import EXPERTS, OfLists, OfStacks, batches, stack_values
from tests.support.mixtures import model as mixtures


class Experts(nn.Module):
    """Stacks that are told which experts each row goes to, as those of transformers are."""

    def __init__(self, up: Tensor, down: Tensor):
        super().__init__()
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for e in range(len(self.up)):
            rows, place = (index == e).nonzero(as_tuple=True)
            given = F.linear(F.silu(F.linear(x[rows], self.up[e])), self.down[e])
            y = y.index_add(0, rows, given * weights[rows, place, None])
        return y


class Routed(OfStacks):
    """With its stacks in a module of their own."""

    def hold(self, up: Tensor, down: Tensor) -> None:
        self.experts = Experts(up, down)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        index = self.router(rows).argmax(-1, keepdim=True)
        y: Tensor = self.experts(rows, index, weights=torch.ones(len(rows), 1))
        return x + y.reshape(x.shape)


def done(kind: type, data: list[Tensor] | None = None, **how: Any) -> tuple[Any, bs.Ledger]:
    settings = {name: how.pop(name) for name in ("order", "bias") if name in how}
    model = mixtures(kind, 2, **settings)
    options = {"weight": "gptq", "experts": "all", "progress": False} | how
    return model, bs.calibrate(model, data or batches(), "mxfp4", **options)


def values(model: Any, name: str) -> Tensor:
    layer, _, last = name.partition(".")
    return stack_values(model, f"{layer}.experts.{last}" if isinstance(model[0], Routed) else name)


NAMES = ("0.up", "0.down", "1.up", "1.down")


def test_an_expert_gets_what_a_linear_gets_of_all_tokens() -> None:
    floats, data = mixtures(OfLists), batches()
    quantized = copy.deepcopy(floats)
    bs.calibrate(
        quantized, data, "mxfp4", weight="gptq", experts="all", sequential=False, progress=False
    )
    mixture: Any = floats[0]
    for e, expert in enumerate(mixture.experts):
        hidden = [F.silu(F.linear(x[0], expert.up.weight)).detach() for x in data]
        for name, inputs in (("up", [x[0] for x in data]), ("down", hidden)):
            alone = nn.Sequential(copy.deepcopy(getattr(expert, name)))
            bs.calibrate(alone, inputs, "mxfp4", weight="gptq", progress=False)
            assert isinstance(alone[0], QLayer)
            assert torch.equal(
                stack_values(quantized, f"0.{name}")[e], alone[0].dequantize_weight()
            )


@pytest.mark.slow
def test_stacks_and_lists_learn_the_same() -> None:
    stack, ledger = done(Routed)
    listed, other = done(OfLists)
    for name in NAMES:
        assert torch.equal(values(stack, name), values(listed, name))
    seen = f"tokens per expert: least {3 * 150}, median {3 * 150}, most {3 * 150}"
    for each in (ledger["0.experts.up"], other["0.experts.0.up"]):
        assert seen in each.details
        assert "all tokens were sent to all experts" in each.details
    plain, _ = done(Routed, experts=0)
    assert not torch.equal(values(stack, "0.up"), values(plain, "0.up"))


@pytest.mark.parametrize("kind", [Routed, OfLists])
def test_an_expert_without_tokens_learns_as_well(kind: type) -> None:
    """The ledger has no expert of few tokens; `strict` is content."""
    model, ledger = done(kind, bias=-1e9, strict=True)
    assert not [note for entry in ledger for note in entry.notes if "saw no token" in note]
    assert values(model, "0.up").shape[0] == EXPERTS


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Routed, OfLists])
def test_neither_the_order_of_experts_nor_of_batches_counts(kind: type) -> None:
    """Inputs are eighths, so that the sums of the first layer's inputs are exact."""
    data = [(x * 8).round() / 8 for x in batches()]
    first, _ = done(kind, data)
    order = [2, 0, 3, 1]
    permuted, _ = done(kind, data, order=order)
    for name in NAMES[:2]:
        assert torch.equal(values(first, name)[order], values(permuted, name))
    other, _ = done(kind, data[::-1])
    assert torch.equal(values(first, "0.up"), values(other, "0.up"))


@pytest.mark.parametrize("how", [{"blocks": False}, {"budget": 1.0}, {"sequential": False}])
def test_static_scales_and_other_ways_through_the_model(how: dict[str, Any]) -> None:
    model = mixtures(Routed, 2)
    recipe = bs.Recipe("mxfp4", input="int8:tensor:fp32", skip=["*.router"])
    bs.calibrate(model, batches(), recipe, "min_max", experts="all", progress=False, **how)
    scales = model.get_submodule("0.experts.up").input.scale  # type: ignore[union-attr]
    most = max(float(x.abs().max()) for x in batches())
    assert torch.equal(scales, torch.full_like(scales, most / 127))


def test_the_model_gives_what_it_gave_and_keeps_no_hooks() -> None:
    model = mixtures(Routed, 2)
    before = [module for module in model.modules() if module._forward_hooks]
    bs.calibrate(model, batches(), "mxfp4", weight="gptq", experts="all", progress=False)
    assert [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks] == before == []


def test_experts_that_cannot_be_called_so_are_named() -> None:
    floats = mixtures(OfStacks)
    with pytest.raises(
        ValueError, match=r"the experts 0 cannot be sent all tokens: it is not told"
    ):
        bs.calibrate(floats, batches(), "mxfp4", weight="gptq", experts="all", progress=False)
    assert isinstance(floats[0].up, nn.Parameter)
    with pytest.raises(ValueError, match="signround learns from what blocks give"):
        bs.calibrate(floats, batches(), "mxfp4", weight="signround", experts="all", progress=False)
    with pytest.raises(ValueError, match="a whole number >= 0, or 'all', got 'most'"):
        bs.calibrate(floats, batches(), "mxfp4", experts="most", progress=False)


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_mixtures_of_transformers(kind: str) -> None:
    pytest.importorskip("transformers")
    from tests.layers.experts.families import build

    model = build(kind)
    ids = [{"input_ids": torch.arange(96).reshape(2, 48)}]
    recipe = bs.Recipe(rules={"*.experts.*proj": "mxfp4"})
    ledger = bs.calibrate(model, ids, recipe, weight="gptq", experts="all", progress=False)
    told = ledger["model.layers.0.mlp.experts.down_proj"].details
    assert "tokens per expert: least 96, median 96, most 96" in told
