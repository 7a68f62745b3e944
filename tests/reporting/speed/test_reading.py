# SPDX-License-Identifier: BSD-3-Clause
"""What a run's file says is read from plain data alone."""

from blockscale.reporting.speed import reading
from tests.support.invented_speed import invented


def test_the_device_and_its_float_layer():
    run = invented()
    assert (reading.kind(run), reading.baseline(run)) == ("cpu", "torch fp32")
    run["settings"]["device"] = "cuda:1"
    assert (reading.kind(run), reading.baseline(run)) == ("cuda", "torch bf16")


def test_cases():
    run = invented()
    [case] = reading.of_group(run, "primitives")
    assert reading.mine(case)["name"] == "blockscale"
    assert reading.of_group(run, "model") == []


def test_the_instruction_set():
    assert reading.instruction_set({"native": {"used": "avx2"}}) == "avx2"
    assert reading.instruction_set({"native": "it was not built"}) == "it was not built"
