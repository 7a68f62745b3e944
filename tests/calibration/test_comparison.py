# SPDX-License-Identifier: BSD-3-Clause
"""What bs.compare gives: an order, a table, plain data."""

import copy
import json
import math

import pytest
from torch import nn

import blockscale as bs
from blockscale.calibration.compare import compare
from tests.calibration.pairs import X, pair


def test_order_table_and_json() -> None:
    model, other = pair(bs.Recipe("int8", rules={"2": {"weight": "int2:group8:fp32"}}))
    found = compare(model, other, X)
    assert [row.name for row in found] == ["2", "0"]  # the worst first
    assert [row.name for row in found.sorted("name")] == ["0", "2"]
    assert [row.name for row in found.sorted("input")] == ["0", "2"]
    with pytest.raises(ValueError, match="unknown order 'size'; choose from isolated, accumulated"):
        found.sorted("size")
    with pytest.raises(KeyError):
        found["1"]
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["layer", "2", "0", "model"]
    assert f"{found['2'].isolated.sqnr:.2f}" in lines[1]
    data = json.loads(found.to_json())
    assert data["layers"][0]["name"] == "2"
    assert data["layers"][0]["input"] is None
    assert data["layers"][0]["weight"]["worst"][0]["index"] == list(
        found["2"].weight.worst[0].index
    )
    assert len(found) == 2
    zeros = nn.Sequential(nn.Linear(32, 4, bias=False))
    zeros[0].weight.data.zero_()
    same = copy.deepcopy(zeros)
    bs.quantize_(same, "int8")
    equal = compare(zeros, same, X)
    assert (equal["0"].weight.sqnr, equal["0"].weight.cosine) == (math.inf, 1.0)
    assert json.loads(equal.to_json())["output"]["sqnr"] is None
