# SPDX-License-Identifier: BSD-3-Clause
"""What `import blockscale` costs on top of `import torch`, in fresh processes.

python -m benchmarks.import_time
"""

import statistics
import subprocess
import sys

from benchmarks.record import record

TIMES = 7
SCRIPT = """
import time
start = time.perf_counter(); import torch
middle = time.perf_counter(); import blockscale
end = time.perf_counter()
print(middle - start, end - middle)
"""


def once() -> tuple[float, float]:
    """Seconds of (import torch, import blockscale after it)."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    torch, ours = map(float, done.stdout.split())
    return torch, ours


def main() -> None:
    once()  # reads the files from disk
    runs = [once() for _ in range(TIMES)]
    torch, ours = (1000 * statistics.median(column) for column in zip(*runs, strict=True))
    print(f"import torch {torch:.0f} ms, blockscale on top {ours:.0f} ms (medians of {TIMES})")
    all_runs = [1000 * run[1] for run in runs]
    path = record("import_time", {"torch_ms": torch, "blockscale_ms": ours, "runs_ms": all_runs})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
