# SPDX-License-Identifier: BSD-3-Clause
"""What the fused kernels take for rows with scales."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu.fused import binary, norms, sdpa, tables
from blockscale.kernels.cpu.fused.rows import (
    Result,
    readable,
    row_block,
    rows_of,
    shape_of,
    writable,
)
from tests.kernels.cpu.fused.given import UINT8, coded, fixed


@pytest.mark.parametrize(
    ("fmt", "shape", "block"),
    [
        ("int8:tensor:fp32", (3, 8), 0),
        ("int8:token:fp32", (3, 8), 8),
        ("int8:token:fp32", (2, 3, 8), 8),
        ("int8:token:fp32", (1, 8), 8),
        ("int8:group4:fp32", (3, 8), 4),
        ("int8:group4:fp32", (3, 10), 4),
        ("int8:group4:fp32", (5, 3, 4), 4),
        ("mxfp8", (3, 64), 32),
        ("int8:channel0:fp32", (3, 8), 8),
        ("int8:channel1:fp32", (3, 8), -1),
        ("int8:tensor:fp32", (1, 1, 8), 8),
        ("int8:channel0:fp32", (3, 4, 8), -1),
        ("int8:tile2x8:fp32", (4, 8), -1),
        ("nvfp4", (3, 32), -1),
        ("int4:token:fp32", (3, 7), -1),
        ("int4:token:fp32", (3, 8), 8),
        ("int8:tensor:fp32", (0, 8), -1),
        ("int8:tensor:fp32", (), -1),
    ],
)
def test_blocks_of_rows(fmt: str, shape: tuple[int, ...], block: int) -> None:
    assert row_block(fmt, shape) == block


def test_what_is_read_and_written() -> None:
    x = torch.randn(4, 8)
    assert readable(Value(x)) and not readable(Value(x.double())) and not readable(Value(x.half()))
    assert readable(coded(x, "int8:token:fp32")) and not readable(coded(x, "nvfp4"))
    assert writable(Quantizer(None, None, None, ""), (4, 8))
    assert writable(fixed(UINT8, 2), (4, 8))
    assert not writable(Quantizer(None, None, None, UINT8), (4, 8))  # the scale needs all rows
    assert writable(Quantizer(None, None, None, "int8:token:fp32"), (4, 8))
    assert not writable(fixed("int8:tensor:fp32:stochastic", 2), (4, 8))


def test_operands_that_misfit() -> None:
    value = coded(torch.randn(4, 8), "int8:token:fp32")
    assert value.scale is not None
    with pytest.raises(ValueError, match=r"expected torch.float32 of shape \(4, 1\)"):
        rows_of(value._replace(scale=value.scale[:2]), [])
    with pytest.raises(ValueError, match=r"packed as torch\.int8"):
        rows_of(value._replace(data=value.data.to(torch.int32)), [])


def test_one_number_of_any_rank() -> None:
    value, y = coded(torch.randn(4, 8), UINT8), fixed(UINT8, 4)
    assert value.scale is not None and value.zero_point is not None
    one = value._replace(scale=value.scale.reshape(1), zero_point=value.zero_point.reshape(1))
    with bs.use("cpu"):
        expected = bs.ops.fused.FUSED["add"](value, value, y=fixed(UINT8, 2))
        found = bs.ops.fused.FUSED["add"](one, one, y=y)
    assert torch.equal(found[0], expected[0])


def test_results() -> None:
    floats = Result(Quantizer(None, None, None, ""), (4, 8))
    assert floats.codes is None and floats.tensors[0].shape == (4, 8) and floats.floats
    codes = Result(fixed(UINT8, 2), (4, 8))
    assert codes.given and codes.floats == 0 and codes.tensors[0].dtype == torch.uint8
    chosen = Result(Quantizer(None, None, None, "int8:token:fp32"), (4, 8))
    assert [part.shape for part in chosen.tensors] == [(4, 8), (4, 1)] and not chosen.given


def test_symbolic_sizes_are_those_that_were_traced() -> None:
    """A graph asks with fake tensors, and no guard may come of it."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Model(), (torch.randn(5, 8),), dynamic_shapes=(batch,))
    (node,) = [each for each in program.graph.nodes if each.op == "placeholder"]
    fake = node.meta["val"]
    assert not isinstance(fake.shape[0], int)
    value, y = Value(fake), Quantizer(None, None, None, "int8:token:fp32")
    codes = Value(
        fake.to(torch.uint8), fake.new_ones(1, 1), fake.new_zeros(1, 1).int(), None, UINT8, 8
    )
    symbols = fake.shape[0].node.shape_env
    before = len(symbols.guards)
    assert shape_of(value) == shape_of(codes) == (5, 8)
    plain = (torch.float32, y)
    assert norms._supports_layer((), (value, [8], None, None, 1e-5, *plain))
    assert binary.supports((parse(UINT8),), (codes, value, *plain))
    assert tables.supports((parse(UINT8),), (codes, torch.float32, fixed(UINT8, 2)))
    heads = Value(fake.new_empty(fake.shape[0], 2, 3, 16))
    attended = (heads, heads, heads, fake.new_ones(3, 3), False, None, False)
    assert sdpa.supports((parse(y.fmt),), (*attended, *plain))
    assert len(symbols.guards) == before
