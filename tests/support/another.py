# SPDX-License-Identifier: BSD-3-Clause
"""Another process, which knows blockscale alone, reads torch.export's files to the same bits."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
READER = """
import json
import sys
import traceback
import torch
import blockscale

def differing(folder):
    calls = torch.load(folder + "/calls.pt")
    module = torch.export.load(folder + "/model.pt2").module()
    for args, kwargs, expected in calls:
        output = module(*args, **kwargs)
        output = output if isinstance(output, dict) else {"": output}
        assert output.keys() == expected.keys(), output.keys()
        for name, tensor in expected.items():
            assert torch.equal(output[name], tensor), name
    assert "transformers" not in sys.modules
    return ["equal", len(calls)]

for line in sys.stdin:
    try:
        found = differing(line.strip())
    except Exception:
        found = traceback.format_exc()
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen]:
    """One process for all files, as starting one takes seconds; it never sees how they are made."""
    command = [sys.executable, "-c", READER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        yield process


def read_by_another(reader, folder, model, *examples):
    """`reader` loads model.pt2 and computes what the model does, bit for bit."""
    calls = []
    for example in examples:
        args, kwargs = ((), example) if isinstance(example, dict) else ((example,), {})
        with torch.no_grad():
            output = model(*args, **kwargs)
        output = dict(output) if hasattr(output, "items") else {"": output}
        calls.append((args, kwargs, output))
    torch.save(calls, folder / "calls.pt")
    print(folder, file=reader.stdin, flush=True)
    found = json.loads(reader.stdout.readline())
    assert found == ["equal", len(examples)], found
