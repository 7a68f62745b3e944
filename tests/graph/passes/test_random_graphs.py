# SPDX-License-Identifier: BSD-3-Clause
"""All passes on small random graphs of the op table: the same bits before and after."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockscale.graph.passes import FUSE
from tests.graph.passes.nets import Coded, graph_of, round_trip, same_after

X = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(0))
ONE = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "times": lambda x: x * 0.5,
    "twice": lambda x: x.transpose(1, 2).transpose(1, 2),
    "heads": lambda x: x.view(x.shape[0], 4, 4, 8).transpose(1, 2).transpose(1, 2).reshape(x.shape),
    "rows": lambda x: x.reshape(-1, 32).view(x.shape),
    "linear": None,
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "cat": lambda a, b: torch.cat([a[:, :2], b[:, 2:]], 1),
    "attend": lambda a, b: F.scaled_dot_product_attention(a, b, b),
}
FORMATS = ("int8:token:fp32", "mxfp8", "nvfp4", "int4:group16:fp32", "uint8:token:fp32:asym")
STATIC = ("int8:tensor:fp32", "e4m3:tensor:fp32", "int4:tensor:fp32")

steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(ONE)), st.integers(0, 9)),
        st.tuples(st.sampled_from(sorted(TWO)), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.sampled_from([*FORMATS, *STATIC]), st.integers(0, 9)),
        st.tuples(st.sampled_from([*FORMATS, *STATIC]), st.integers(0, 9)),
    ),
    min_size=3,
    max_size=9,
)


def built(net, x: Tensor, plan: list[tuple]) -> list[Tensor]:
    """A net of these steps, each of which reads earlier results; the last two are given back."""
    found = [x]
    for name, *places in plan:
        a, *b = (found[place % len(found)] for place in places)
        if name == "linear":
            found.append(F.linear(a, net.weight(), net.bias))
        elif name in ONE:
            found.append(ONE[name](a))
        elif name in TWO:
            found.append(TWO[name](a, b[0]))
        else:
            found.append(round_trip(a, name, net.scale if name in STATIC else None))
    return [each * 1.0 for each in found[-2:]]


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("weight", ["int8:channel0:fp32", "int4:group16:fp32"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=steps)
def test_the_same_bits(weight: str, plan: list[tuple]) -> None:
    torch.manual_seed(0)
    constants = {
        "weight": Coded(torch.randn(32, 32), weight),
        "bias": torch.randn(32),
        "scale": torch.full((1, 1, 1), 0.04),
    }
    graph = graph_of(lambda net, x: built(net, x, plan), X, **constants)
    same_after(graph, FUSE, X, X[:2])
