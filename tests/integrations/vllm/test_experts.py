# SPDX-License-Identifier: BSD-3-Clause
"""Tokens through their experts: beside a loop over tokens, in float64."""

import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme
from blockscale.integrations.vllm.experts import (
    Biases,
    ExpertMatrices,
    Experts,
    Joined,
    check_biases,
    chosen_of,
    clamped_swiglu,
    one_stack,
)
from blockscale.layers.before.rotate import Rotate
from blockscale.layers.kinds import QLinear
from blockscale.layers.store import QWeight

COUNT, K, N = 3, 32, 16


def silu(y: Tensor) -> Tensor:
    gate, up = y.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def matrices(rows: int, columns: int, stacked: bool) -> tuple[ExpertMatrices, Tensor]:
    """For each expert a matrix in int8, and their values [E, rows, columns]."""
    weights = torch.randn(COUNT, rows, columns)
    if stacked:
        held = QWeight.quantize(weights, parse("int8:group16:fp32"))
        return ExpertMatrices(held), held.dequantize()
    each = [QWeight.quantize(weight, parse("int8:group16:fp32")) for weight in weights]
    layers = [Joined([QLinear(one, None, Scheme(one.format))]) for one in each]
    return ExpertMatrices(None, layers), torch.stack([one.dequantize() for one in each])


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("weigh_inputs", [True, False])
def test_each_token_goes_through_its_experts(stacked: bool, weigh_inputs: bool) -> None:
    torch.manual_seed(0)
    up, wide = matrices(2 * N, K, stacked)
    down, back = matrices(K, N, stacked)
    x, weights = torch.randn(9, K), torch.rand(9, 2)
    ids = torch.randint(-1, COUNT, (9, 2))
    ids[:, 1] = torch.where(ids[:, 1] == 1, 2, ids[:, 1])  # expert 1 has few tokens
    found = Experts(up, down, COUNT)(x, weights, ids, silu, weigh_inputs)
    expected = torch.zeros(9, K, dtype=torch.float64)
    for t in range(9):
        for s in range(2):
            e, w = int(ids[t, s]), float(weights[t, s])
            if e < 0:
                continue
            row = x[t].double() * (w if weigh_inputs else 1)
            y = back[e].double() @ silu(wide[e].double() @ row)
            expected[t] += y if weigh_inputs else w * y
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def gpt_oss(wide: Tensor, back: Tensor) -> GptOssExperts:
    """transformers' own experts with these matrices, which are [k, n] there, and biases with which
    some gates and ups are beyond the limits."""
    config = GptOssConfig(
        hidden_size=K, intermediate_size=N, num_local_experts=COUNT, num_experts_per_tok=2
    )
    theirs = GptOssExperts(config).eval()
    with torch.no_grad():
        theirs.gate_up_proj.copy_(wide.transpose(1, 2))
        theirs.down_proj.copy_(back.transpose(1, 2))
        theirs.gate_up_proj_bias.normal_(0, 5)
        theirs.down_proj_bias.normal_(0, 5)
    return theirs


@pytest.mark.parametrize("stacked", [True, False])
def test_biases_and_the_clamped_activation_of_gpt_oss(stacked: bool) -> None:
    """All experts here, and with those of expert 1 in another process: the rest of the sum."""
    torch.manual_seed(0)
    up, wide = matrices(2 * N, K, stacked)
    down, back = matrices(K, N, stacked)
    theirs = gpt_oss(wide, back)
    experts = Experts(up, down, COUNT)
    biases = Biases(theirs.gate_up_proj_bias, theirs.down_proj_bias)
    x, weights = torch.randn(9, K), torch.rand(9, 2)
    ids = torch.stack([torch.randperm(COUNT)[:2] for _ in range(9)])
    with torch.no_grad():
        found = experts(x, weights, ids, clamped_swiglu, biases=biases)
        torch.testing.assert_close(found, theirs(x, ids, weights), rtol=1e-5, atol=1e-3)
        elsewhere = torch.where(ids == 1, -1, ids)
        part = experts(x, weights, elsewhere, clamped_swiglu, biases=biases)
        mine = torch.where(ids == 1, 0, weights)
        torch.testing.assert_close(part, theirs(x, ids, mine), rtol=1e-5, atol=1e-3)


def test_biases_of_experts_that_are_all_elsewhere_add_nothing() -> None:
    experts = Experts(matrices(2 * N, K, False)[0], matrices(K, N, False)[0], COUNT)
    biases = Biases(torch.randn(COUNT, 2 * N), torch.randn(COUNT, K))
    ids = torch.full((4, 2), -1)
    found = experts(torch.randn(4, K), torch.rand(4, 2), ids, clamped_swiglu, biases=biases)
    assert torch.equal(found, torch.zeros(4, K))


def test_the_clamped_activation_in_half_precision() -> None:
    """transformers' own function, bit for bit: at, below and beyond the limits."""
    config = GptOssConfig(hidden_size=K, intermediate_size=N, num_local_experts=1)
    theirs = GptOssExperts(config)
    edges = torch.tensor([-30.0, -7.5, -7, -1, 0, 0.5, 7, 7.5, 30])
    y = torch.cartesian_prod(edges, edges).reshape(27, 6)  # three gates and ups in each row
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(clamped_swiglu(y.to(dtype)), theirs._apply_gate(y.to(dtype)))


def test_experts_with_biases_that_are_refused() -> None:
    check_biases("layers.0", "swigluoai", 1)
    with pytest.raises(ValueError, match=r"layers\.0: .* have silu: keep them in float"):
        check_biases("layers.0", "silu", 1)
    with pytest.raises(ValueError, match=r"layers\.0: .* is 2: set tensor_parallel_size=1"):
        check_biases("layers.0", "swigluoai", 2)


def test_no_tokens_and_tokens_of_other_processes() -> None:
    experts = Experts(matrices(2 * N, K, False)[0], matrices(K, N, False)[0], COUNT)
    empty = experts(torch.zeros(0, K), torch.zeros(0, 2), torch.zeros(0, 2).long(), silu)
    assert empty.shape == (0, K)
    elsewhere = torch.full((4, 2), -1)
    found = experts(torch.randn(4, K), torch.rand(4, 2), elsewhere, silu)
    assert torch.equal(found, torch.zeros(4, K))


def test_a_stack_whose_experts_share_numbers_is_refused() -> None:
    held = QWeight.quantize(torch.randn(COUNT, 2 * N, K), parse("int8:flat48:fp32"))
    held.name = "experts.gate_up_proj"
    with pytest.raises(ValueError, match=r"experts\.gate_up_proj: experts share numbers of int8"):
        ExpertMatrices(held)(torch.randn(2, K), [1, 1, 2])
    held = QWeight.quantize(torch.randn(COUNT, 2 * N, K), parse("int8:tensor:fp32"))
    with pytest.raises(ValueError, match="experts share numbers of int8:tensor:fp32"):
        chosen_of(held, [1])


def layer_of(
    values: Tensor, fmt: str, by: str | None = None, scale: float | None = None
) -> QLinear:
    weight = QWeight.quantize(values, parse(fmt))
    own = None if by is None else parse(by)
    layer = QLinear(weight, None, Scheme(weight.format, own))
    if scale is not None:
        assert layer.input is not None
        layer.input.set_scale(torch.tensor([[scale]]), features=values.shape[-1])
    return layer


@pytest.mark.parametrize(
    "fmt", ["nvfp4", "int8:tensor:fp32", "int8_channel", "uint4:group16:fp16:asym"]
)
def test_experts_of_static_inputs_are_one_stack(fmt: str) -> None:
    """Codes, numbers and given scales of each: the bits of one after another, any experts of it."""
    torch.manual_seed(0)
    by, scales = "int8:tensor:fp32", (0.01, 0.02, 0.03)
    experts = [
        [layer_of(torch.randn(N, K) * (e + 1), fmt, by, scales[e]) for _ in "gu"]
        for e in range(COUNT)
    ]
    stack = one_stack(experts)
    x, ends = torch.randn(6, K), torch.tensor([1, 4, 6])
    found = ExpertMatrices(stack)(x, ends)
    rows = ExpertMatrices(None, [Joined(each) for each in experts])(x, ends)
    assert torch.equal(found, rows)
    some = chosen_of(stack, [2, 0])
    assert chosen_of(stack, range(COUNT)) is stack
    assert torch.equal(ExpertMatrices(some)(x[[4, 5, 0]], torch.tensor([2, 3])), rows[[4, 5, 0]])
    with pytest.raises(ValueError, match=r"has 3 experts, expected some of them: \[0, 3\]"):
        chosen_of(stack, [0, 3])


@pytest.mark.filterwarnings("ignore:no cpu kernel runs choose_quantize for book4")
def test_experts_that_no_stack_holds() -> None:
    """Each for a reason of its own."""
    torch.manual_seed(0)
    values = torch.randn(N, K)

    def why(*layers: QLinear, each: int = 1) -> str:
        pairs = [list(layers[i : i + each]) for i in range(0, len(layers), each)]
        return ExpertMatrices.of_layers([Joined(pair) for pair in pairs]).apart

    plain, static = layer_of(values, "int8_channel"), "int8:tensor:fp32"
    assert why(plain, layer_of(values, "int8_channel")) == ""
    assert "several formats or shapes" in why(plain, layer_of(values, "nvfp4"))
    assert "several formats or shapes" in why(plain, layer_of(values[:8], "int8_channel"))
    assert "several input formats" in why(plain, layer_of(values, "int8_channel", static))
    assert "book4 is one table" in why(*(layer_of(values, "book4:channel0:fp32") for _ in "ab"))
    apart = [layer_of(values, "int8_channel", static, scale) for scale in (0.1, 0.2)]
    assert "input scales of their own" in why(*apart, each=2)
    assert why(*apart) == ""  # of two experts
    turned = layer_of(values, "int8_channel")
    turned.before = Rotate(K, K)
    assert "inputs of experts are transformed" in why(turned, plain)
