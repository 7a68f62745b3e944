# SPDX-License-Identifier: BSD-3-Clause
"""Sums, products, bounds, tables and joined tensors on integers."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from tests.graph.lowering.integers.flows import BOTH, INT8, INT16, UINT8, check, fused, integers


class Two(nn.Module):
    """Two layers of one input, whose outputs have other scales, and what joins them."""

    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.last, self.join = (
            nn.Linear(6, 4),
            nn.Linear(6, 4),
            nn.Linear(4, 3),
            join,
        )
        self.b.weight.data *= 16

    def forward(self, x):
        return self.last(self.join(self.a(x), self.b(x)))


@pytest.mark.slow
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("rule", [None, BOTH, {"input": INT16, "output": UINT8}])
def test_joins(op, rule):
    if op == "mul" and rule is None:
        return  # a product of sums is no sum that float32 holds
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    graph = fused(Two(getattr(torch, op)), x, {f"op:{op}": rule} if rule else {})
    check(graph, x)
    check(graph, 50 * x)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(x + self.a(x))


@pytest.mark.slow
def test_a_residual_from_the_models_input():
    x = torch.randn(5, 6)
    check(fused(Residual(), x, {"op:add": {"input": INT8}}), x)


CLAMPS = [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-2.0, 1.0)]


@pytest.mark.pairs
@pytest.mark.slow
@pytest.mark.parametrize("fmt", [INT8, UINT8])
@pytest.mark.parametrize("rule", [False, True])
@pytest.mark.parametrize("act", CLAMPS, ids=str)
def test_bounds(act, rule, fmt):
    torch.manual_seed(0)
    x = torch.randn(20, 6) * 8
    name = {"ReLU": "relu", "ReLU6": "relu6", "Hardtanh": "hardtanh"}[type(act).__name__]
    rules = {f"op:{name}": {"input": fmt, "output": fmt}} if rule else {}
    check(fused(nn.Sequential(nn.Linear(6, 8), act, nn.Linear(8, 3)), x, rules, fmt=fmt), x)


class Six(nn.Module):
    """F.relu6: nn.ReLU6 is a hardtanh to torch.export."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu6(x)


@pytest.mark.parametrize("act", [*CLAMPS, Six()], ids=str)
def test_bounds_of_codes_alone(act: nn.Module) -> None:
    """Behind no layer that takes the bounds into its product."""
    x = torch.linspace(-12, 12, 97)
    both = {"input": INT8, "output": INT8}
    rules = {f"op:{name}": both for name in ("relu", "relu6", "hardtanh")}
    graph = fused(nn.Sequential(act), x, rules)
    check(graph, x)
    lowered = integers(graph)
    with torch.no_grad():
        assert (lowered(x) - act(x)).abs().max() <= 0.125  # steps of 1/8 and finer


TABLES = {
    "gelu": nn.GELU(), "silu": nn.SiLU(), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(),
    "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(), "leaky_relu": nn.LeakyReLU(0.1),
    "elu": nn.ELU(), "mish": nn.Mish(), "softplus": nn.Softplus(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [INT8, UINT8, INT16])
@pytest.mark.parametrize("name", TABLES)
def test_every_code_of_a_table(name, fmt):
    """All codes there are: the fused graph's bits, and half a step from float."""
    torch.manual_seed(0)
    model, act = nn.Sequential(TABLES[name]), TABLES[name]
    form = bs.parse(fmt)
    low, high = (int(end) for end in form.element.limits(form.wide))
    x = torch.linspace(-4, 4, high - low + 1)
    graph = fused(model, x, {f"op:{name}": {"input": fmt, "output": INT8}})
    lowered = integers(graph)
    quantize = next(n for n in lowered.graph.nodes if "integer_quantize" in str(n.target))
    step, zero = 2.0 ** quantize.args[1], quantize.args[2]
    codes = (torch.arange(low, high + 1) - zero) * step
    with torch.no_grad():
        found, expected = lowered(codes), graph(codes)
        assert torch.equal(found, expected)
        out = next(n for n in lowered.graph.nodes if "integer_dequantize" in str(n.target))
        y_step = 2.0 ** out.args[2]
        exact = act(codes.double()).clamp(-127 * y_step, 127 * y_step)
    assert ((found - exact).abs() <= y_step / 2 + 1e-6).all()


@pytest.mark.slow
def test_scalars():
    class Scaled(nn.Module):
        def forward(self, x):
            return (x * 0.3).neg()

    x = torch.randn(64)
    check(fused(Scaled(), x, {"op:mul": BOTH, "op:neg": BOTH}), x)


class Divided(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.register_buffer("by", torch.as_tensor(by))

    def forward(self, x):
        return x / self.by


@pytest.mark.slow
def test_division_by_a_number_that_the_model_holds():
    """As attention's scores by the root of a head's size: the bits of a division by that number."""
    x = torch.randn(4, 6) * 4
    for by in (32.0**0.5, 4.0, [0.3], -2.5):
        check(fused(Divided(by), x, {"op:div": BOTH}), x)


def test_division_by_several_numbers():
    x, by = torch.randn(4, 6) * 4, torch.tensor([0.5, 3.0, -7.0, 1.5, 2.0, 11.0])
    graph = fused(Divided(by), x, {"op:div": BOTH})
    lowered = integers(graph)
    out = next(n for n in lowered.graph.nodes if "integer_dequantize" in str(n.target))
    # reciprocals have 16 bits: a step apart where the quotient lies next to a tie
    assert (lowered(x) - graph(x)).abs().max() <= 2.0 ** out.args[2]
    with pytest.raises(bs.graph.NotIntegerError, match="holds NaN or infinity"):
        bs.graph.lower(fused(Divided(by * 0), x + 1, {"op:div": {"input": INT8}}), "integer")


@pytest.mark.slow
def test_division_by_what_is_computed():
    class Ratio(nn.Module):
        def forward(self, x):
            return x / x.relu()

    with pytest.raises(bs.graph.NotIntegerError, match="divides by a computed value"):
        bs.graph.lower(
            fused(Ratio(), torch.rand(3, 4) + 1, {"op:div": BOTH, "op:relu": BOTH}), "integer"
        )


@pytest.mark.parametrize(
    ("model", "rules", "message"),
    [
        (nn.Sigmoid(), {"op:sigmoid": {"input": INT8}}, "sigmoid.* has no format for its result"),
        (nn.Hardtanh(-0.3), {"op:hardtanh": {"input": INT8}}, "not a multiple of the step"),
    ],
)
def test_what_is_refused(model, rules, message):
    graph = fused(nn.Sequential(model), torch.randn(8), rules)
    with pytest.raises(bs.graph.NotIntegerError, match=message):
        bs.graph.lower(graph, "integer")


@pytest.mark.slow
def test_scales_too_far_apart():
    x = torch.randn(5, 6)
    model = Two(torch.add)
    model.b.weight.data *= 2.0**60
    graph = fused(model, x)
    with pytest.raises(bs.graph.NotIntegerError, match=r"more than int64 holds|s differ by 2\^"):
        bs.graph.lower(graph, "integer")


class Cat(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.join = nn.Linear(6, 4), nn.Linear(6, 4), join
        self.b.weight.data *= 16

    def forward(self, x):
        return self.join([self.a(x), self.b(x)], 1)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ["cat", "stack"])
@pytest.mark.parametrize(
    "rule", [{"input": INT8, "shared": True}, {"input": INT8, "output": UINT8}]
)
def test_tensors_that_become_one(name, rule):
    x = torch.randn(5, 6)
    check(fused(Cat(getattr(torch, name)), x, {f"op:{name}": rule}), x)


def test_several_scales_need_a_format():
    graph = fused(Cat(torch.cat), torch.randn(5, 6), {"op:cat": {"input": INT8}})
    with pytest.raises(bs.graph.NotIntegerError, match=r"cat.* joins tensors of different scales"):
        bs.graph.lower(graph, "integer")
