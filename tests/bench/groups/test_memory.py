# SPDX-License-Identifier: BSD-3-Clause
"""Memory: peaks that follow from shapes, and tensors that have the bytes that are counted."""

from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.bench import requests
from blockscale.bench.groups import memory
from blockscale.reporting.speed import tables
from tests.support.bench_runs import SETTINGS, measured

MINE = replace(SETTINGS, only="memory/*", formats=("mxfp4", "int8_channel"))


@pytest.fixture(scope="module")
def lines():
    return {case["name"]: case for case in measured(MINE)}


def test_primitives_move_what_is_counted(lines):
    """4 x 256 floats; mxfp4 stores half a byte each and a byte of scale for 32."""
    stored = 4 * 256 // 2 + 4 * 256 // 32
    for op, result in (("quantize", stored), ("dequantize", 4096), ("fake_quantize", 4096)):
        [line] = lines[f"memory/{op}/mxfp4/4x256"]["contestants"]
        assert line["result_bytes"] == result
        assert line["peak_bytes"] == line["result_bytes"] + line["temporary_bytes"]
        assert line["tensor_bytes"] == line["counted_bytes"]
        assert line["tensor_bytes"] == {"quantize": 4096 + stored, "dequantize": stored + 4096}.get(
            op, 8192
        )


@pytest.mark.slow
def test_native_kernels_take_nothing_besides(lines):
    if bs.hardware().backends["cpu"] is not None:
        pytest.skip("no native kernels here")
    [line] = lines["memory/quantize/mxfp4/4x256"]["contestants"]
    assert (line["backend"], line["temporary_bytes"]) == ("cpu", 0)


def test_layers_hold_what_is_counted(lines):
    [line] = lines["memory/linear/int8_channel/256x32/m=2"]["contestants"]
    weight = requests.stored_bytes(bs.parse("int8_channel"), (32, 256))
    assert line["counted_bytes"] == line["tensor_bytes"] == weight + 4 * 2 * (256 + 32)


def test_a_table_tells_of_them(lines):
    run = {"cases": list(lines.values()), "settings": {"device": "cpu"}}
    [table] = [each for each in tables(run) if each.title == "Memory"]
    assert len(table.rows) == len(lines)
    assert {row[-1] for row in table.rows} == {"1.0000"}


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in memory.cases(SETTINGS)]
    assert len(names) == len(set(names))
