# SPDX-License-Identifier: BSD-3-Clause
"""Tokens through their experts: beside a loop over tokens, in float64."""

import pytest
import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme
from blockscale.integrations.vllm.experts import ExpertMatrices, Experts
from blockscale.integrations.vllm.served import Joined
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
