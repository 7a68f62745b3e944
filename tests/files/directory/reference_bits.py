# SPDX-License-Identifier: BSD-3-Clause
"""What the reference makes of the tensors of a directory."""

import torch
from safetensors.torch import load_file

from blockscale.core import reference
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.joined_weights import of_stack
from blockscale.core.pack import pack, to_stored


def expected(name, tensor, layout, fmt, seed=0):
    """{stored name: tensor}: what the reference makes of the whole tensor, or of each matrix."""
    stored = to_stored(tensor, layout)
    if stored.ndim == 3 and fmt.rounding != "stochastic":
        each = [expected(name, matrix, "plain", fmt) for matrix in stored]
        return {part: torch.stack([parts[part] for parts in each]) for part in each[0]}
    fmt = of_stack(fmt, stored.shape) if stored.ndim == 3 else fmt
    qparams = reference.choose_qparams(stored, fmt)
    codes = reference.quantize(stored, qparams, fmt, torch.tensor(named_seed(seed, name)))
    parts = {"codes": pack(codes, fmt.element), **qparams._asdict()}
    return {f"{name}.{part}": t.contiguous() for part, t in parts.items() if t is not None}


def check_bits(found, tensors, layouts, fmt, seed=0):
    for name, tensor in tensors.items():
        parts = (
            expected(name, tensor, layouts[name], fmt, seed) if name in layouts else {name: tensor}
        )
        for stored, want in parts.items():
            got = found.pop(stored)
            assert got.dtype == want.dtype, stored
            assert got.shape == want.shape, stored
            bits = [t.reshape(-1).view(torch.uint8) for t in (got, want)]
            assert torch.equal(*bits), stored
    assert not found


def load_all(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        part = load_file(path)
        assert not found.keys() & part.keys()
        found |= part
    return found
