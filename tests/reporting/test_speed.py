# SPDX-License-Identifier: BSD-3-Clause
"""What a run's file says is read from plain data alone."""

import pytest

from blockscale.reporting import speed
from tests.support.invented_speed import invented, line


def test_the_device_and_its_float_layer():
    run = invented()
    assert (speed.kind(run), speed.baseline(run)) == ("cpu", "torch fp32")
    run["settings"]["device"] = "cuda:1"
    assert (speed.kind(run), speed.baseline(run)) == ("cuda", "torch bf16")


def test_cases():
    run = invented()
    [case] = speed.of_group(run, "primitives")
    assert speed.mine(case)["name"] == "blockscale"
    assert speed.of_group(run, "model") == []


def test_the_instruction_set():
    assert speed.instruction_set({"native": {"used": "avx2"}}) == "avx2"
    assert speed.instruction_set({"native": "it was not built"}) == "it was not built"


# A run as tables: marks, what was left out, and on what it was measured.


def test_the_tables_that_have_rows():
    titles = [table.title for table in speed.tables(invented())]
    assert titles == [
        "Ceilings",
        "Primitives: named formats",
        "Primitives: peers",
        "Linear, k=4096, n=4096",
    ]
    for table in speed.tables(invented()):
        assert all(len(row) == len(table.header) for row in table.rows)


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"of_copy": 0.5}, "0.50"),
        ({"of_copy": 0.9, "targets": {"of_copy": {"at_least": 0.9}}}, "0.90 ✓"),
        ({"of_copy": 0.89, "targets": {"of_copy": {"at_least": 0.9}}}, "0.89 ✗ 0.9"),
        ({"of_copy": 0.1, "targets": {"of_copy": {"at_most": 0.1}}}, "0.10 ✓"),
        ({"of_copy": 0.11, "targets": {"of_copy": {"at_most": 0.1}}}, "0.11 ✗ 0.1"),
        ({"of_copy": 0.5, "backend": "reference"}, "0.50*"),
        ({"of_copy": 0.5, "targets": {"relative": {"at_most": 0.1}}}, "0.50"),
        ({"relative": 0.5}, ""),
    ],
)
def test_marks(figures, text):
    assert speed.cell(line("a", "ours", 1.0, **figures), "of_copy") == text


def test_formats_without_a_name_have_a_table_of_their_own():
    run = invented()
    [case] = [case for case in run["cases"] if case["group"] == "primitives"]
    run["cases"].append(case | {"format": "int5:group8:fp32"})
    run["cases"].append(case | {"dtype": "bfloat16"})
    made = {table.title: table for table in speed.tables(run)}
    assert [row[:2] for row in made["Primitives: named formats"].rows] == [("mxfp4", "float32")]
    others = made["Primitives: other blocks, roundings and dtypes"].rows
    assert [row[:2] for row in others] == [("int5:group8:fp32", "float32"), ("mxfp4", "bfloat16")]


def test_overhead_and_the_model():
    lines = [
        line("public function", "ours", 3e-6, microseconds=3.0),
        line("op", "ours", 2e-6, microseconds=2.0, over_torch=1.5),
        line("torch", "ceiling", 5e-7, microseconds=0.5),
    ]
    cost = {"group": "overhead", "op": "quantize", "format": "int8", "contestants": lines}
    embed = {"group": "model", "sentences": 32, "tokens": 64, "contestants": [
        line("torch fp32", "ceiling", 0.2, relative=1.0), line("int8", "ours", 0.1, relative=0.5,
                                                               cosine=0.99955)]}  # fmt: skip
    made = {table.title: table for table in speed.tables(invented() | {"cases": [cost, embed]})}
    assert made["Overhead on small tensors"].rows == [
        ("quantize", "int8", "3.0", "2.0", "0.5", "1.5")
    ]
    assert made["all-MiniLM-L6-v2, 32 sentences x 64 tokens"].rows == [
        ("torch fp32", "200 ms", "1.000", ""),
        ("int8", "100 ms", "0.500", "0.9996"),
    ]


def test_who_was_left_out_is_said_once():
    assert speed.left_out(invented()) == ["late: OSError: no library"]


def test_conditions():
    told = dict(speed.conditions(invented()))
    assert told["when"] == "2026-01-01, 3 s"
    assert told["last-level cache"].endswith(" MiB")
    assert {"processor", "kernels", "versions", "commit", "allocator"} <= told.keys()
    stopped = dict(speed.conditions(invented() | {"complete": False}))
    assert stopped["when"] == "2026-01-01, 3 s, stopped after 3 cases"


def test_floors_follow_bytes_or_operations():
    run = invented()
    case = run["cases"][2]
    assert speed.floors(run) == {"bfp8 x bfp8": {1: pytest.approx(1e7 / 50e9 / 0.01)}}
    case["contestants"][2]["bytes"] = 1  # then onnxruntime's rate counts, in integers four times
    assert speed.floors(run) == {"bfp8 x bfp8": {1: pytest.approx(0.01 / 4)}}
    case["contestants"][2]["name"] = "mxfp4 weights"
    assert speed.floors(run) == {"mxfp4 weights": {1: pytest.approx(0.01)}}
    assert speed.floors(run | {"cases": run["cases"][1:]}) == {}
    assert speed.prediction(run | {"cases": []}).rows == []


def test_rates_are_those_of_the_best():
    run = invented()
    assert speed.bandwidth(run) == 50e9
    assert speed.float_rate(run) == 2 * 4096**2 / 1e-4  # onnxruntime's
    assert speed.float_rate(run | {"cases": []}) == speed.bandwidth(run | {"cases": []}) == 0.0
