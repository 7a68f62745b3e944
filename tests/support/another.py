# SPDX-License-Identifier: BSD-3-Clause
"""Another process, which knows blockscale alone, reads torch.export's files to the same bits."""

import torch

from tests.support import fresh

# It never sees how they were made.
READER = """
import sys
import torch
import blockscale

folder = sys.argv[1]
calls = torch.load(folder + "/calls.pt")
module = torch.export.load(folder + "/model.pt2").module()
for args, kwargs, expected in calls:
    output = module(*args, **kwargs)
    output = output if isinstance(output, dict) else {"": output}
    assert output.keys() == expected.keys(), output.keys()
    for name, tensor in expected.items():
        assert torch.equal(output[name], tensor), name
assert "transformers" not in sys.modules
print("equal", len(calls))
"""


def read_by_another(folder, model, *examples):
    """A new process loads model.pt2 and computes what the model does, bit for bit."""
    calls = []
    for example in examples:
        args, kwargs = ((), example) if isinstance(example, dict) else ((example,), {})
        with torch.no_grad():
            output = model(*args, **kwargs)
        output = dict(output) if hasattr(output, "items") else {"": output}
        calls.append((args, kwargs, output))
    torch.save(calls, folder / "calls.pt")
    done = fresh.run(READER, folder, warn="ignore", ready=fresh.WITH_OURS, check=True)
    assert done.stdout == f"equal {len(examples)}\n"
