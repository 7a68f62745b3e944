# SPDX-License-Identifier: BSD-3-Clause
"""Calibration and training on a GPU: what they choose is what they choose on the CPU."""

import copy
import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale import observers
from blockscale.calibration.algorithms.columns import Graphs, Step
from blockscale.calibration.algorithms.gptq import GPTQ

pytestmark = pytest.mark.gpu

RECIPE = bs.Recipe("int8:channel0:fp32", input="int8:tensor:fp32", output="int8:channel-1:fp32")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))


@pytest.mark.parametrize("name", ["min_max", "percentile:99.9", "entropy", "mse", "adaptive"])
@pytest.mark.parametrize(
    "fmt", ["int8:tensor:fp32", "uint8:channel-1:fp32:asym", "int8:tensor:pow2/nearest"]
)
def test_observers_choose_the_same(name: str, fmt: str) -> None:
    torch.manual_seed(1)
    batches = [torch.randn(128, 32) * 3**i for i in range(3)]
    batches[1][3, 4] = torch.nan
    seen = [observers.make(name, fmt), observers.make(name, fmt).cuda()]
    for batch in batches:
        seen[0].observe(batch)
        seen[1].observe(batch.cuda())
    for here, there in zip(*(each.qparams() for each in seen), strict=True):
        assert (here is None) == (there is None)
        if here is not None:
            assert torch.equal(here, there.cpu())
    assert int(seen[1].nans) == 1


def test_calibrate() -> None:
    """Ranges of the first layer's input are exact; further on, sums differ in their last bits."""
    batches = [torch.randn(32, 64) for _ in range(3)]
    here, there = model(), model().cuda()
    bs.calibrate(here, batches, RECIPE, observer="min_max", progress=False)
    bs.calibrate(there, batches, RECIPE, observer="min_max", progress=False)
    assert torch.equal(here[0].input.scale, there[0].input.scale.cpu())
    for layer in (0, 2):
        assert torch.equal(here[layer].weight.codes, there[layer].weight.codes.cpu())
        torch.testing.assert_close(
            here[layer].output.scale, there[layer].output.scale.cpu(), rtol=1e-4, atol=0
        )


@pytest.mark.parametrize("weight", ["mse", "hqq", "gptq"])
@pytest.mark.parametrize("transform", [None, "smoothquant", "awq", "hadamard"])
def test_algorithms_run(weight: str, transform: str | None) -> None:
    net = model().cuda()
    batches = [torch.randn(32, 64, device="cuda") for _ in range(2)]
    expected = copy.deepcopy(net)(batches[0])
    recipe = bs.Recipe("int8:group32:fp32", input="int8:token:fp32")
    bs.calibrate(net, batches, recipe, weight=weight, transform=transform, progress=False)
    error = (net(batches[0]) - expected).norm() / expected.norm()
    assert error < 0.03


@pytest.mark.parametrize("fmt", ["int8_channel", "mxfp4", "nvfp4", "bfp8", "ternary"])
@pytest.mark.parametrize("learn", [None, "steps"])
def test_training_ends_in_the_same_bits(fmt: str, learn: str | None) -> None:
    net = model().cuda()
    bs.prepare_qat(net, bs.Recipe(fmt, input="int8"), learn=learn)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(32, 64, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        trained = net(x)
        assert torch.equal(bs.convert(net)(x), trained)


REPLAYED = [
    "int4:group32:fp16",
    "uint4:group32:fp16:asym",
    "int4:group40:fp16",
    "int4:block32x32:fp32",
    "mxfp4",
    "mxint8",
    "nvfp4",
    "e2m1:group16:e4m3/four_six",
    "if4:group16:e4m3",
    "nf4:group64:fp32",
]


@pytest.mark.parametrize("scales", ["mse", "absmax"])
@pytest.mark.parametrize("fmt", REPLAYED)
def test_steps_that_are_replayed(fmt: str, scales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes and scales of three weights side by side, whose last columns are fewer: the same bits
    whether a CUDA graph replays the steps or each kernel is started by itself."""
    torch.manual_seed(0)
    n, k, count = 64, 648, 3
    weights = [torch.randn(n, k, device="cuda") for _ in range(count)]
    rows = [
        torch.randn(2 * k, k, device="cuda") * (1 + torch.rand(k, device="cuda")) for _ in range(3)
    ]
    grams = [(x.T @ x / len(x)).double() for x in rows]
    recorded: list[bool] = []
    record = Graphs._record

    def counted(graphs: Graphs, step: Step, inputs: Sequence[Tensor]) -> object:
        graph = record(graphs, step, inputs)
        recorded.append(graph is not None)
        return graph

    monkeypatch.setattr(Graphs, "_record", counted)
    names, drifts = ["a", "b", "c"], [None] * count
    replayed = GPTQ(scales).quantize_each(weights, bs.parse(fmt), grams, names, drifts)
    assert len(recorded) >= 2 and all(recorded)
    monkeypatch.setattr(Graphs, "enabled", False)
    alone = GPTQ(scales).quantize_each(weights, bs.parse(fmt), grams, names, drifts)
    assert len(recorded) < 20
    for (here, notes), (there, others) in zip(replayed, alone, strict=True):
        assert notes == others and torch.equal(here.packed, there.packed)
        for part, other in zip(here.qparams, there.qparams, strict=True):
            assert (part is None) == (other is None)
            assert part is None or torch.equal(part.float(), other.float())


def test_a_step_that_no_graph_records() -> None:
    """One that waits for the GPU runs as before, with a warning; others are recorded after it."""
    graphs, x = Graphs(torch.device("cuda")), torch.arange(4.0, device="cuda")

    def waits(x: Tensor) -> tuple[Tensor, ...]:
        return (x + float(x.sum()),)

    for i in range(5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (result,) = graphs.run("waits", 9, waits, [x + i])
        assert torch.equal(result, x + i + float((x + i).sum()))
        texts = [str(each.message) for each in caught]
        assert len(texts) == (i == 2) and all("could not record them" in text for text in texts)
        (double,) = graphs.run("double", 9, lambda x: (x * 2,), [x + i])
        assert torch.equal(double, 2 * (x + i))
