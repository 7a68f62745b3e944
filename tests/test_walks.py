# SPDX-License-Identifier: BSD-3-Clause
"""Files that calls go through: counted alike each time, and no more than docs/design.md allows."""

import re
import sys

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.kernels import registry
from tests.support.walks import Walk, flows, walk, walks

MOST = {  # files; these only go down
    "`bs.quantize`, reference": 16,
    "`bs.quantize`, cpu": 10,
    "`bs.quantize_`, three layers": 29,
    '`bs.calibrate(weight="gptq")`, two layers': 60,
}


def test_what_is_entered_is_counted_once_it_is_warm() -> None:
    found = walk(lambda: [parse("mxfp4") for _ in range(3)])
    assert found.files == ("core/parse.py",)
    assert found.folders == 1 and found == walk(lambda: parse("mxfp4"))
    assert walk(lambda: torch.ones(3).sum()) == Walk((), 0)


def test_a_profiler_that_was_there_stays_and_errors_pass() -> None:
    before = sys.getprofile()

    def wrong() -> None:
        parse("no format")

    with pytest.raises(ValueError, match="no format"):
        walk(wrong)
    assert sys.getprofile() is before


@pytest.mark.parametrize("name", MOST)
def test_no_more_files_than_before(name: str) -> None:
    with flows() as found:
        if registry.unavailable("cpu") and name.endswith("cpu"):
            pytest.skip("the CPU's kernels are not built here")
        made = walk(found[name]())
        again = walk(found[name]())
    assert made == again
    # what tests before have woken listens: libraries, each by a file of its own, and bs.webgpu()
    own = [
        f for f in made.files if not re.match(r"integrations/.*/|kernels/webgpu/torch_device", f)
    ]
    assert len(own) <= MOST[name], "\n".join(own)


@pytest.mark.slow
def test_every_flow_runs() -> None:
    found = dict(walks())
    assert len(found) == 12
    assert all(isinstance(each, Walk) for name, each in found.items() if "webgpu" not in name)
