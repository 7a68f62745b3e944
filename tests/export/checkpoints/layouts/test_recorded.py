# SPDX-License-Identifier: BSD-3-Clause
"""Every layout on what its producer stored: the producer's values, to the bit, on our codes."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from tests.export.checkpoints.layouts.recorded import cases, directory, same

PRODUCERS = {
    "gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "hqq": "HQQ",
    "quanto": "optimum-quanto", "mlx": "MLX",
}  # fmt: skip
CASES = [(producer, case) for producer in PRODUCERS for case in cases(producer)]


@pytest.mark.some(4)
@pytest.mark.parametrize(("producer", "case"), CASES, ids=" ".join)
def test_values(producer, case, tmp_path):
    stored, values, config = cases(producer)[case]
    with bs.checkpoint(directory(tmp_path / "d", stored, config)) as found:
        assert found.producer == PRODUCERS[producer] and found.evidence
        assert [name for name in found if name != "a.bias"] == ["a.weight"]
        told, q = found.stored["a.weight"], found["a.weight"]
        beside = found.without_codes("a.weight")
        own, order = found.dequantize("a.weight"), found.order("a.weight")
    if order is not None:
        assert producer == "gptq" and "act" in case
        values_of_q = torch.empty(q.shape).index_copy_(1, order, q.dequantize())
    else:
        values_of_q = q.dequantize()
    values = values.reshape(own.shape) if "without bias" in case else values
    if case.startswith("fp4"):  # its C++ on a CPU reads code 8 as 0, its Python as -0
        own, values = own + 0.0, values + 0.0
    assert same(own, values)
    assert tuple(q.shape) == told.shape == tuple(own.shape)
    assert parse(told.format) == q.format and told.kind.lower().startswith(producer[:5])
    assert beside.packed.is_meta or producer in ("hqq", "quanto") or told.kind.endswith("int8")
    assert beside.format == q.format and beside.shape == q.shape
    for one, other in zip(beside.qparams, q.qparams, strict=True):
        assert one is other is None or torch.equal(one.nan_to_num(), other.nan_to_num())
    assert _near(values_of_q, values.float(), values.dtype, producer, case)


def _near(ours, theirs, dtype, producer, case):
    """What the QTensor itself gives: the same, or what a rounding less gives."""
    finite = theirs.isfinite()
    rounded = ours.to(dtype).float()
    if producer in ("gptq", "awq") or (producer == "bitsandbytes" and "int8" not in case):
        return torch.equal(rounded[finite], theirs[finite])
    if dtype == torch.float32 and "int8" not in case:
        return torch.equal(ours[finite], theirs[finite])
    size = theirs[finite].abs().amax()
    return bool(((ours - theirs).abs()[finite] <= 2 * torch.finfo(dtype).eps * size).all())
