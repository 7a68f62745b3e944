# SPDX-License-Identifier: BSD-3-Clause
"""The audit finds what computes with floats, whoever wrote it."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.lowering.integers.audit import audit_integer, check, digits, terms
from blockscale.graph.nodes import aten, call
from tests.graph.lowering.integers.flows import fused


def lowered():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return bs.graph.lower(fused(model, torch.randn(4, 8)), "integer")


@pytest.mark.slow
def test_what_is_there():
    audit = audit_integer(lowered())
    assert audit.ops == {"integer_quantize": 1, "integer_linear": 2, "integer_dequantize": 1}
    assert audit.edges == {"int8": 2, "int32": 1}
    assert audit.integer and audit.exact and len(audit.sums) == 2


@pytest.mark.some(3)
@pytest.mark.parametrize("place", ["between", "before", "behind"])
def test_a_planted_float_op_is_found(place):
    graph = lowered()
    nodes = {str(n.target).split(".")[1]: n for n in graph.graph.nodes if n.op == "call_function"}
    first = nodes["integer_linear"]
    if place == "between":
        like = first.next
        half = call(graph, aten.mul.Scalar, (first, 0.5), like=like)
        back = call(graph, aten.to.dtype, (half, torch.int8), like=like)
        first.replace_all_uses_with(back, lambda user: user not in (half, back))
        planted = 2
    elif place == "before":
        door = nodes["integer_quantize"]
        doubled = call(graph, aten.mul.Scalar, (door.args[0], 2.0), like=door)
        door.replace_input_with(door.args[0], doubled)
        planted = 1
    else:
        door = nodes["integer_dequantize"]
        doubled = call(graph, aten.mul.Scalar, (door, 2.0), like=door.next)
        door.replace_all_uses_with(doubled, lambda user: user is not doubled)
        planted = 1
    audit = audit_integer(graph)
    assert len(audit.floats) == planted and not audit.integer
    with pytest.raises(
        bs.graph.NotIntegerError, match=r"an integer graph compute with floats.*\n  mul"
    ):
        check(graph)


def test_a_float_graph_is_all_floats():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    program = torch.export.export(model, (torch.randn(4, 8),))
    assert len(audit_integer(program.module(check_guards=False)).floats) >= 2


def test_modules_are_not_looked_into():
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    assert audit_integer(traced).floats == ("call_module 0",)


EVERY = torch.arange(-(2**15), 2**15)


def test_digits_add_up_to_every_number_of_16_bits():
    found = digits(EVERY)
    assert torch.equal(sum(digit.to(torch.int64) << shift for digit, shift in found), EVERY)
    assert all(set(digit.unique().tolist()) <= {-1, 0, 1} for digit, _ in found)


def fewest(top):
    """{number up to top: the fewest signed powers of two that add up to it}, by search."""
    powers = [s << k for k in range(top.bit_length() + 1) for s in (1, -1)]
    known, edge = {0: 0}, {0}
    while len([n for n in known if 0 <= n <= top]) <= top:
        edge = {n + p for n in edge for p in powers if abs(n + p) <= 2 * top} - known.keys()
        known |= dict.fromkeys(edge, max(known.values()) + 1)
    return known


def test_no_sum_has_fewer_terms():
    known = fewest(256)
    assert terms(torch.arange(257)).tolist() == [known[n] for n in range(257)]
    assert torch.equal(terms(-EVERY), terms(EVERY))
