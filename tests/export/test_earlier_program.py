# SPDX-License-Identifier: BSD-3-Clause
"""A program that release 0.1.0 exported calls ops by the names of their arguments: it still runs.

Its ops took `bias` before `fmt`, where it comes after it now. The model, for indices [4]: a table,
a Conv1d, fake_quantize and two linear layers, in mxfp4 with int8_token inputs.
"""

from pathlib import Path

import torch

import blockscale as bs
from blockscale.ops.op import OPS

FILE = Path(__file__).parent / "data" / "release_0_1.pt2"
# What release 0.1.0 computed for INDICES on the reference: the first two columns.
INDICES = torch.tensor([0, 3, 5, 1])
EXPECTED = torch.tensor(
    [[0.192952, 0.255642], [0.297953, 0.251327], [0.368155, 0.387788], [0.190273, 0.189022]]
)


def test_it_computes_what_it_did() -> None:
    program = torch.export.load(FILE)
    called = {str(node.target) for node in program.graph.nodes if "blockscale" in str(node.target)}
    assert called == {
        f"blockscale.{name}.default" for name in ("embedding", "conv", "fake_quantize", "linear")
    }
    with torch.no_grad(), bs.use("reference"):
        y = program.module()(INDICES)
    assert y.shape == (4, 8)
    torch.testing.assert_close(y[:, :2], EXPECTED, rtol=OPS["linear"].ulps * 2.0**-24, atol=1e-6)


def test_its_arguments_mean_what_they_did() -> None:
    """Not by their order: the bias of a linear layer is still its bias."""
    program = torch.export.load(FILE)
    names = OPS["linear"].signature.names
    for node in program.graph.nodes:
        if node.target is OPS["linear"].overload:
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            assert "bias" in str(given["bias"]) and "codes" in str(given["weight"])
            assert given["fmt"] == "e2m1:group32:e8m0/floor"
            assert given["input_fmt"] == "int8:token:fp32"
