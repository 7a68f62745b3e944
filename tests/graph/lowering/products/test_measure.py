# SPDX-License-Identifier: BSD-3-Clause
"""The command that writes the table of times."""

import json

import pytest
import torch

from blockscale.graph.lowering.products.choose import key_of, processor
from blockscale.graph.lowering.products.measure import measure, usual
from blockscale.kernels.registry import unavailable


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_what_others_measured_stays(tmp_path):
    path = tmp_path / "measured.json"
    path.write_text('{"other": {"a|b|c|d": {"1,2,3": {"kernel": 1.0}}}}')
    product = usual()[0]._replace(rows=1, n=32, k=32)
    threads = torch.get_num_threads()
    table = measure([product], path)
    assert torch.get_num_threads() == threads
    assert json.loads(path.read_text()) == table
    assert table["other"] == {"a|b|c|d": {"1,2,3": {"kernel": 1.0}}}
    assert table[processor()][key_of(product)]["1,32,32"].keys() >= {"kernel", "inside"}


def test_usual_products():
    assert len({(key_of(each), each.rows, each.n, each.k) for each in usual()}) == len(usual())
