# SPDX-License-Identifier: BSD-3-Clause
"""Stacks are calibrated as lists of modules are, and as each expert is by itself; the ledger says
what each saw."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.layers.layer import QLayer
from blockscale.layers.store import all_held
from tests.support.mixtures import (
    EXPERTS,
    K,
    Mixture,
    OfLists,
    OfStacks,
    Turned,
    batches,
    model,
    stack_values,
)

FEW = 40  # tokens: all experts of these mixtures see more in three batches
ALGORITHMS = ("mse", "hqq", "search", "gptq", "absmax")


def same(a: nn.Module, b: nn.Module, layers: int = 1) -> bool:
    names = [f"{i}.{last}" for i in range(layers) for last in ("up", "down")]
    return all(torch.equal(stack_values(a, n), stack_values(b, n)) for n in names)


def calibrated(
    float_model: nn.Module, fmt: str, data: list[Tensor] | None = None, **how: Any
) -> Any:
    done = copy.deepcopy(float_model)
    ledger = bs.calibrate(done, data or batches(), fmt, progress=False, **how)
    return done, ledger


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("weight", ALGORITHMS)
@pytest.mark.parametrize("kind", [OfStacks, Turned])
def test_a_stack_gets_the_codes_of_a_list(kind: type[Mixture], weight: str) -> None:
    fmt = {"search": "int4:group16:fp32", "hqq": "int4:group16:fp32:asym"}.get(weight, "nvfp4")
    stack, ledger = calibrated(model(kind, 2), fmt, weight=weight, experts=FEW)
    listed, _ = calibrated(model(OfLists, 2), fmt, weight=weight, experts=FEW)
    if kind is OfStacks:
        assert same(stack, listed, 2)
    else:  # x @ w is another product of torch's, so inputs of what follows differ in a last bit
        assert torch.equal(stack_values(stack, "0.up"), stack_values(listed, "0.up"))
    expected = "plain rounding" if weight == "absmax" else f"weight by {weight}"
    assert expected in ledger["0.up"].details
    assert "tokens per expert: least" in ledger["1.down"].details


@pytest.mark.slow
@pytest.mark.parametrize("sequential", ["layers", True, False])
def test_in_every_order_of_quantizing(sequential: bool | str) -> None:
    how: Any = {"weight": "gptq", "sequential": sequential, "experts": FEW}
    stack, _ = calibrated(model(OfStacks, 2), "mxfp4", **how)
    whole = calibrated(model(OfStacks, 2), "mxfp4", **how, blocks=False)[0]
    assert same(stack, calibrated(model(OfStacks, 2), "mxfp4", **how, budget=1.0)[0], 2)
    if sequential is not True:
        assert same(stack, whole, 2)
    if sequential != "layers":  # up and down of a list's expert are looked at together there
        assert same(stack, calibrated(model(OfLists, 2), "mxfp4", **how)[0], 2)


@pytest.mark.some(5)
@pytest.mark.parametrize("weight", ["gptaq", "signround"])
def test_algorithms_that_need_the_float_model_or_a_block(weight: str) -> None:
    from blockscale.calibration.algorithms.signround import SignRound

    algorithm: Any = GPTQ(asymmetric=True) if weight == "gptaq" else SignRound(4)
    stack, ledger = calibrated(model(OfStacks, 2), "mxfp4", weight=algorithm)
    assert same(stack, calibrated(model(OfLists, 2), "mxfp4", weight=algorithm)[0], 2)
    assert f"weight by {algorithm.name}" in ledger["0.down"].details


def test_an_expert_gets_what_a_linear_gets_of_the_same_tokens() -> None:
    floats = model(OfStacks)
    data = batches()
    stack, _ = calibrated(floats, "mxfp4", data, weight="gptq", sequential=False, experts=0)
    mixture: Any = floats[0]
    for e in range(EXPERTS):
        rows = [x[0][mixture.router(x[0]).argmax(-1) == e].detach() for x in data]
        hidden = [F.silu(F.linear(x, mixture.up[e])).detach() for x in rows]
        for name, inputs in (("up", rows), ("down", hidden)):
            alone = nn.Sequential(nn.Linear(*getattr(mixture, name)[e].T.shape, bias=False))
            alone[0].weight = nn.Parameter(getattr(mixture, name)[e].detach().clone())
            bs.calibrate(alone, inputs, "mxfp4", weight="gptq", progress=False)
            assert isinstance(alone[0], QLayer)
            expected = alone[0].dequantize_weight()
            assert torch.equal(stack_values(stack, f"0.{name}")[e], expected), (e, name)


@pytest.mark.slow
def test_calibrated_experts_lose_less() -> None:
    floats, data = model(OfStacks), batches()
    plain = copy.deepcopy(floats)
    bs.quantize_(plain, "int4:group32:fp32")
    expected = [floats(x) for x in data]

    def loss(quantized: nn.Module) -> float:
        with torch.no_grad():
            return sum(
                float((quantized(x) - y).square().sum())
                for x, y in zip(data, expected, strict=True)
            )

    for weight in ("gptq", "search"):
        done, _ = calibrated(floats, "int4:group32:fp32", data, weight=weight)
        assert loss(done) < 0.8 * loss(plain)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OfStacks, OfLists])
def test_permuted_experts_get_the_same_bits(kind: type[Mixture]) -> None:
    order = [2, 0, 3, 1]
    for least in (0, 1000):  # of their own statistics, and filled up with all experts'
        how: Any = {"weight": "gptq", "experts": least}
        first, _ = calibrated(model(kind), "mxfp4", **how)
        second, _ = calibrated(model(kind, order=order), "mxfp4", **how)
        for name in ("0.up", "0.down"):
            assert torch.equal(stack_values(first, name)[order], stack_values(second, name))


def test_the_model_is_as_it_was_if_something_is_raised() -> None:
    floats = model(OfStacks)
    before = dict(floats.named_parameters())
    kind, modules = type(floats[0]), dict(floats.named_modules())

    def broken() -> Any:
        yield batches()[0]
        raise OSError("no more data")

    with pytest.raises(OSError, match="no more data"):
        bs.calibrate(floats, broken(), "mxfp4", progress=False)
    assert all(p is before[n] for n, p in floats.named_parameters())
    assert type(floats[0]) is kind
    assert dict(floats.named_modules()) == modules


def test_what_is_not_seen_is_in_the_ledger() -> None:
    class Odd(OfStacks):
        def expert(self, e: int, x: Tensor) -> Tensor:
            up = F.silu(F.linear(x, self.up[e]))
            return torch.einsum("tk,nk->tn", up, self.down[e])

    done, ledger = calibrated(model(Odd), "mxfp4", weight="gptq", strict=True)
    assert "weight by gptq" in ledger["0.up"].details
    assert ledger["0.down"].details.startswith("plain rounding: its products are not seen (")
    assert "einsum" in ledger["0.down"].details
    plain = model(Odd)
    bs.quantize_(plain, "mxfp4")
    assert torch.equal(stack_values(done, "0.down"), stack_values(plain, "0.down"))


def test_a_rule_for_one_expert_of_a_stack() -> None:
    recipe = bs.Recipe("mxfp4", rules={"0.up.2": "mxfp8"})
    with pytest.raises(ValueError, match=r"'0.up.2' names expert 2 of 0.up, a stack of 4, and a"):
        calibrated(model(OfStacks), recipe)  # type: ignore[arg-type]
    floats = model(OfStacks)
    with pytest.raises(ValueError, match=r"'0.up.2' names expert 2 of 0.up, a stack of 4, and a"):
        bs.quantize_(floats, recipe)
    assert isinstance(floats[0].up, nn.Parameter)
    with pytest.warns(UserWarning, match="of the recipe matches nothing"):
        bs.quantize_(floats, bs.Recipe("mxfp4", skip=["*1*"]))  # which says nothing of experts
    assert {name for name, _ in all_held(floats)} == {"0.up", "0.down"}


def test_a_list_that_changes_between_calls() -> None:
    class Changing(OfLists):
        def forward(self, x: Tensor) -> Tensor:
            self.experts[1] = copy.deepcopy(self.experts[1])
            return super().forward(x)

    for layers in (1, 2):
        with pytest.raises(RuntimeError, match=r"the model changed 0.experts.1.* while it was"):
            calibrated(model(Changing, layers), "mxfp4", weight="gptq")


def test_nan_in_routed_tokens() -> None:
    data = batches()
    data[1][0, 5, 3] = torch.nan
    mixture: Any = model(OfStacks)[0]
    e = int(mixture.router(data[1][0]).argmax(-1)[5])
    with pytest.warns(UserWarning, match="1 rows of its input hold a NaN"):
        done, ledger = calibrated(model(OfStacks), "mxfp4", data, weight="gptq", sequential=False)
    assert [n for n in ledger["0.up"].notes if "NaN" in n] == [
        f"expert {e}: 1 rows of its input hold a NaN or an infinity, left out"
    ]
    assert stack_values(done, "0.up").isfinite().all()


def test_awq_leaves_stacks_and_says_so() -> None:
    _, ledger = calibrated(model(OfStacks), "mxfp4", transform="awq", weight="mse")
    assert "awq: not transformed, experts in a stack have one input each" in ledger["0.up"].details
    assert K == 32


# The ledger says what experts saw, and what was done for those that saw little.


def first_entry(kind: type[Mixture]) -> str:
    return "0.up" if kind is OfStacks else "0.experts.0.up"


def counts(floats: Mixture) -> list[int]:
    best = torch.cat([floats.router(x[0]).argmax(-1) for x in batches()])
    return [int((best == e).sum()) for e in range(EXPERTS)]


@pytest.mark.parametrize("kind", [OfStacks, OfLists])
def test_tokens_per_expert(kind: type[Mixture]) -> None:
    floats = model(kind)
    seen = counts(floats[0])  # type: ignore[arg-type]
    low, *middle, high = sorted(seen)
    ledger = bs.calibrate(
        floats, batches(), "mxfp4", weight="gptq", progress=False, experts=low + 1
    )
    details = ledger[first_entry(kind)].details
    assert f"tokens per expert: least {low}, median {sum(middle) / 2:g}, most {high}" in details
    few = f"expert {seen.index(low)} ({low}) of {EXPERTS} saw fewer than {low + 1} tokens: their"
    assert few in details
    assert not [note for entry in ledger for note in entry.notes]


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("kind", [OfStacks, OfLists])
def test_an_expert_without_tokens(kind: type[Mixture]) -> None:
    floats = model(kind, bias=-1e9)
    done = copy.deepcopy(floats)
    with pytest.warns(UserWarning, match="expert 3 of 4 saw no token"):
        ledger = bs.calibrate(done, batches(), "nvfp4", weight="gptq", progress=False)
    assert "expert 3 of 4 saw no token" in ledger[first_entry(kind)].notes
    values, exact = stack_values(done, "0.up")[3], floats[0].router.weight  # type: ignore[union-attr]
    assert values.isfinite().all()
    assert values.abs().max() > 0
    assert exact is not None
    with pytest.warns(UserWarning, match="saw no token"):
        bs.calibrate(alone := copy.deepcopy(floats), batches(), "nvfp4", weight="gptq", experts=0)
    assert not torch.equal(stack_values(alone, "0.up")[3], values)  # it was rounded by itself
    before = {name: p.clone() for name, p in floats.named_parameters()}
    with pytest.raises(bs.SkippedError, match=r"layers saw no data in 3 batches") as raised:
        bs.calibrate(floats, batches(), "nvfp4", weight="gptq", progress=False, strict=True)
    name = "0.up[3]" if kind is OfStacks else "0.experts.3.up"
    assert name in str(raised.value)
    assert all(torch.equal(p, before[name]) for name, p in floats.named_parameters())
