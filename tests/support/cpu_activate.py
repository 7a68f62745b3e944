# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_activate.py: `EXACT`, `NEAR`.
"""

import torch
import torch.nn.functional as F

EXACT = {"relu": torch.relu, "relu6": F.relu6, "hardswish": F.hardswish}


# name -> function, largest error in units of 2^-24 of the result or, of the last two, of x.
# What src/isa/linear/activations.h states.
NEAR = {
    "sigmoid": (torch.sigmoid, 4, False),
    "silu": (F.silu, 5, False),
    "tanh": (torch.tanh, 3, False),
    "gelu": (F.gelu, 3, True),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 3, True),
}
