# SPDX-License-Identifier: BSD-3-Clause
"""examples/digits_qat.py: real training, one seed; docs/qat_accuracy.md is what it wrote."""

import importlib.util
import pathlib
import re
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    path = ROOT / "examples" / "digits_qat.py"
    spec = importlib.util.spec_from_file_location("digits_qat", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits_qat"] = module  # its dataclass asks for its module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["digits_qat"]


@pytest.mark.slow
def test_one_seed_reaches_what_was_asked_for(digits):
    torch.set_num_threads(1)
    found = digits.measure(0)
    exact = found["float32"][0]
    assert exact >= 98
    below = {case.name: exact - found[case.name][1] for case in digits.CASES}
    # what was asked for is a mean; that of one seed depends on the processor's sums, by 1.6 points
    late = {case.name: case.below for case in digits.CASES if below[case.name] > case.below + 1}
    assert not late, below


def test_the_page_says_that_it_is_so():
    page = (ROOT / "docs" / "qat_accuracy.md").read_text()
    assert float(re.search(r"\| float32 \| \| \| ([\d.]+)", page)[1]) >= 98
    rows = re.findall(r"\| (-?[\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    assert all(float(below) <= float(most) for below, most in rows), rows
