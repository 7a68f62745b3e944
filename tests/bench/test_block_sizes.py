# SPDX-License-Identifier: BSD-3-Clause
"""The sweep over block sizes on a small weight: what it tells, and its figures."""

import pytest

from benchmarks.block_sizes import OPS, SIZES, plot, sweep


@pytest.mark.slow
def test_a_sweep_and_its_figures(tmp_path):
    data = sweep(128, 0.0, ("e2m1",))
    sizes = [size for size in SIZES if size <= 128]
    assert [row["size"] for row in data["rows"]] == sizes * 2
    first = data["rows"][0]
    assert first["bits"] == 4 + 16 / 32
    assert first["over_copy"].keys() == set(OPS)
    errors = [row["sqnr"]["outliers"] for row in data["rows"][: len(sizes)]]
    assert errors == sorted(errors, reverse=True)  # an outlier spoils the block that it is in
    pytest.importorskip("matplotlib", reason="NO matplotlib: figures are not tested")
    names = {path.stem for path in plot(data, tmp_path / "figures")}
    assert names == {"sqnr-normal", "sqnr-outliers", "quantize", "dequantize", "linear"}
