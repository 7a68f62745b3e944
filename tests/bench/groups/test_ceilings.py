# SPDX-License-Identifier: BSD-3-Clause
"""Ceilings: bandwidth of copies, operations a second of torch's products."""

from dataclasses import replace

import pytest
import torch

from blockscale.bench.groups import ceilings
from blockscale.bench.groups.ceilings import _in_threads, copies
from blockscale.bench.settings import Settings
from tests.support.bench_runs import SETTINGS, measured


def test_copies():
    [case] = measured(replace(SETTINGS, only="ceilings/copy/*"))
    assert case["bytes"] == 4096
    for line in case["contestants"]:
        assert line["kind"] == "ceiling"
        assert line["gigabytes_per_second"] == pytest.approx(4096 / line["seconds"] / 1e9)


def test_products():
    case, more = measured(replace(SETTINGS, only="ceilings/matmul/*"))
    assert [line["name"] for line in case["contestants"]] == ["torch float32", "torch bfloat16"]
    assert (case["operations"], more["operations"]) == (2 * 256 * 32, 2 * 2 * 256 * 32)
    for line in case["contestants"]:
        rate = case["operations"] / line["seconds"] / 1e9
        assert line["gigaflops"] == pytest.approx(rate)


def test_they_are_measured_on_memory_and_not_on_caches():
    cases = list(ceilings.cases(Settings()))
    assert all(case.cold for case in cases)
    assert len({case.name for case in cases}) == len(cases)


# A copy is the ceiling of all that moves bytes: it moves every byte, in threads too.


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 64, 65, 1000, 4096])
def test_threads_copy_every_byte(size, threads):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = torch.zeros(size + 1, dtype=torch.uint8)
    _in_threads(target[:size], source, threads)()
    assert torch.equal(target[:size], source)
    assert target[size] == 0


def test_copies_move_half_of_their_bytes_twice():
    found = copies(4096, "cpu")
    assert [each.name for each in found] == ["copy: torch", "copy: memcpy in threads"]
    assert {each.bytes for each in found} == {4096}
    assert found[0].call().numel() == 2048
    assert [each.name for each in copies(4096, "meta")] == ["copy: torch"]
