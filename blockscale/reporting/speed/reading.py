# SPDX-License-Identifier: BSD-3-Clause
"""What is asked of a run's data: a file of `blockscale bench`, as JSON gives it back."""

from typing import Any

Run = dict[str, Any]  # a run, one of its cases, or a contestant's line in a case
FLOAT_LAYERS = {"cpu": ("torch fp32", "onnxruntime fp32"), "cuda": ("torch bf16",)}


def kind(run: Run) -> str:
    """The device that was measured, without its number: "cpu" or "cuda"."""
    return str(run["settings"]["device"]).partition(":")[0]


def baseline(run: Run) -> str:
    """The name of the float layer that others are compared with."""
    return FLOAT_LAYERS[kind(run)][0]


def of_group(run: Run, group: str) -> list[Run]:
    """The measured cases of a group, such as "linear"."""
    return [case for case in run["cases"] if case["group"] == group]


def mine(case: Run) -> Run:
    """The line of ours in a primitive's case."""
    return next(line for line in case["contestants"] if line["kind"] == "ours")


def instruction_set(machine: Run) -> str:
    """The one that blockscale's CPU kernels used on a run's machine, or why there was none."""
    native = machine["native"]
    return str(native["used"]) if isinstance(native, dict) else str(native)
