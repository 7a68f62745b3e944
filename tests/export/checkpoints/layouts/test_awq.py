# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: gemm and gemv, and what is refused. Values: test_recorded.py."""

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.recorded import cases, directory

GEMM, GEMV = cases("awq")["gemm"], cases("awq")["gemv"]


def test_by_shape_alone(tmp_path):
    stored, values, _ = GEMM
    with bs.checkpoint(directory(tmp_path / "d", stored, {})) as found:
        assert found.producer == "AWQ" and "AWQ's gemm" in found.evidence
        assert found.stored["a.weight"].format == "uint4:group32:fp16:asym"
        assert torch.equal(found.dequantize("a.weight"), values)


@pytest.mark.parametrize("outputs", [8, 64, 136])
def test_the_first_rows(outputs, tmp_path):
    stored = {
        "a.qweight": torch.randint(-(2**31), 2**31, (128, outputs // 8)).int(),
        "a.qzeros": torch.randint(-(2**31), 2**31, (4, outputs // 8)).int(),
        "a.scales": torch.randn(4, outputs).half(),
    }
    with bs.checkpoint(directory(tmp_path / "d", stored, {})) as found:
        some, whole = found.first_rows("a.weight"), found["a.weight"]
        assert some.shape == (min(outputs, 64), 128) and some.format == whole.format
        assert torch.equal(some.dequantize(), whole.dequantize()[: some.shape[0]])
    stored, _, known = GEMV
    with bs.checkpoint(directory(tmp_path / "e", stored, known)) as found:
        assert found.first_rows("a.weight") is None and found.first_rows("no") is None


def test_zero_points_of_a_word_are_in_its_order():
    """Nibble i of a word is output 0 2 4 6 1 3 5 7 of its eight (AWQ_ORDER of packing_utils.py)."""
    from blockscale.export.checkpoints.layouts.awq import _outputs

    order = [0, 2, 4, 6, 1, 3, 5, 7]
    word = sum(output << 4 * i for i, output in enumerate(order))
    assert _outputs(torch.tensor([[word]], dtype=torch.int32)).tolist() == [list(range(8))]


@pytest.mark.parametrize(
    ("case", "config", "others", "told"),
    [
        (GEMV, {"version": "gemv_fast"}, {"a.qweight": torch.zeros(8, 64).short()}, "'gemv_fast'"),
        (GEMV, {"version": "marlin"}, {}, "its version is 'marlin', rearranged for one kernel"),
        (GEMV, {"version": "gemv", "group_size": 2}, {}, "16 scales per row, expected 64 for"),
        (GEMM, {}, {"a.qzeros": torch.ones(4, 3).int()}, "match neither gemm nor gemv"),
        (GEMM, {}, {"a.scales": torch.ones(4, 32).double()}, "its scales are torch.float64"),
        (GEMM, {}, {"a.scales": torch.ones(3, 32).half(), "a.qzeros": torch.zeros(3, 4).int()},
         "its 128 inputs cannot be divided into 3 groups"),
    ],
)  # fmt: skip
def test_what_is_refused(case, config, others, told, tmp_path):
    stored, _, known = case
    with bs.checkpoint(directory(tmp_path / "d", stored | others, known | config)) as found:
        assert set(found) == {"a.weight"}
        assert told in found.stored["a.weight"].unread
