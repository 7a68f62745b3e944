# SPDX-License-Identifier: BSD-3-Clause
"""Native code that lacks memory raises MemoryError with the size, and works after."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attack.native_calls import CASES

ROOT = Path(__file__).parents[2]
SMALL = {
    "look_up",
    "embedding",
    "choose of columns",
    "choose_quantize",
}  # they need no more than KBs


def begin(threads: int, steps: int, *names: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "attack.scarce", str(threads), str(steps)]
    # what is freed is given back at once, so that each limit finds the same process
    settings = {"MMAP_THRESHOLD": "4096", "TOP_PAD": "0", "TRIM_THRESHOLD": "0"}
    environment = os.environ | {f"MALLOC_{name}_": value for name, value in settings.items()}
    environment["OMP_NUM_THREADS"] = str(threads)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, *names], stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment
    )


def scarce(threads: int, steps: int, *names: str) -> list[dict]:
    return end(begin(threads, steps, *names))


def end(process: subprocess.Popen[str]) -> list[dict]:
    out, error = process.communicate()
    assert process.returncode == 0, (process.returncode, out[-300:], error[-2000:])
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.slow
def test_a_lack_inside_a_parallel_region_is_carried_out() -> None:
    integers, dequantize = scarce(2, 12, "integers", "dequantize")
    assert integers["lacks"] >= 2
    assert (
        dequantize["lacks"] >= 1
    )  # all of them inside a region; those of other primitives are before one


@pytest.mark.slow
def test_first_exceptions_of_threads_that_wait_for_a_processor() -> None:
    """More processes than processors: a thread may be kept waiting anywhere."""
    processes = [begin(2, 60, "dequantize") for _ in range(3 * (os.cpu_count() or 1))]
    for process in processes:
        assert end(process)[0]["lacks"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_every_native_call(threads: int) -> None:
    results = scarce(threads, 60, *CASES)
    assert [found["name"] for found in results] == list(CASES)
    for found in results:
        assert found["limits"] == 61
        assert found["lacks"] or found["name"] in SMALL or found["name"] == "fingerprint", found
