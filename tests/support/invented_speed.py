# SPDX-License-Identifier: BSD-3-Clause
"""A complete full run with figures that are easy to check."""

from blockscale.bench import results
from blockscale.bench.settings import MIB, Settings


def line(name, kind, seconds, **more):
    """A contestant's."""
    counts = {"least_seconds": seconds, "rounds": 3, "calls": 1}
    return {"name": name, "kind": kind, "seconds": seconds, **counts, **more}


def invented():
    """The run as its file gives it back."""
    cases = [
        {
            "name": f"ceilings/copy/{64 * MIB}", "group": "ceilings", "op": "copy",
            "bytes": 64 * MIB, "skipped": [],
            "contestants": [line("copy: torch", "ceiling", 1e-3, gigabytes_per_second=50.0)],
        },
        {
            "name": "quantize/mxfp4/4096x4096/float32", "group": "primitives", "op": "quantize",
            "format": "mxfp4", "dtype": "float32", "reads": 1, "bytes": 10, "shape": [4096, 4096],
            "contestants": [
                line("blockscale", "ours", 2e-3, of_copy=0.5, backend="reference",
                     targets={"of_copy": {"at_least": 0.8}}),
                line("torchao mxfp4 eager", "peer", 2e-2, of_copy=0.05),
            ],
            "skipped": [{"name": "late", "reason": "OSError: no library"}],
        },
        {
            "name": "linear/4096x4096/m=1", "group": "linear", "op": "linear", "m": 1, "k": 4096,
            "n": 4096, "operations": 2 * 4096**2,
            "skipped": [{"name": "late", "reason": "OSError: no library"}],
            "contestants": [
                line("torch fp32", "ceiling", 0.01, relative=1.0),
                line("onnxruntime fp32", "peer", 1e-4, relative=0.01),
                line("bfp8 x bfp8", "ours", 0.001, relative=0.1, bytes=10**7, of_copy=0.4,
                     targets={"relative": {"at_most": 0.2}}),
            ],
        },
    ]  # fmt: skip
    about = results.about(Settings())
    return about | {"complete": True, "seconds": 3.0, "cases": cases, "when": "2026-01-01"}
