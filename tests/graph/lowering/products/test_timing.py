# SPDX-License-Identifier: BSD-3-Clause
"""Every way is timed on the same product."""

import json

import pytest
import torch

from blockscale.graph.lowering import onednn
from blockscale.graph.lowering.products import timing
from blockscale.graph.lowering.products.choose import key_of, processor
from blockscale.graph.lowering.products.product import Product, spelling
from blockscale.graph.lowering.products.timing import measure, usual
from blockscale.kernels.registry import unavailable

STATIC = "uint8:tensor:fp32:asym"


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
@pytest.mark.parametrize(
    ("x", "y", "activation"),
    [(STATIC, "", ""), (STATIC, STATIC, "gelu"), ("int8_token", "mxfp8", "relu"), ("", "", "")],
)
def test_the_ways_compute_the_same(x, y, activation):
    given = y == STATIC
    product = Product(
        spelling(x), spelling("int8_channel"), spelling(y), activation, given, 3, 32, 64
    )
    runs = timing._runs(product)
    names = ["kernel", "inside", "composed"]
    names += ["onednn"] if x == STATIC and onednn.unavailable() is None else []
    results = []
    for name in names:
        found = runs[name]()
        found = found[0] if isinstance(found, list | tuple) else found
        results.append(getattr(found, "codes", found).to(torch.float32))
    for other in results[1:]:
        assert (other - results[0]).abs().max() <= (1.0 if y else 1e-4)


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_times():
    product = Product(spelling("int8"), spelling("int8_channel"), "", "", False, 2, 32, 64)
    times = timing.time_ways(product, ["kernel", "inside", "unheard"], rounds=1)
    assert times.keys() == {"kernel", "inside"} and min(times.values()) > 0


# The command that writes the table of times.


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
