# SPDX-License-Identifier: BSD-3-Clause
"""Every native call on four threads, for a library that ThreadSanitizer watches (attack/races.sh)."""

import sys

import torch

from attack.native_calls import CASES

_ROUNDS = 3

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, make in CASES.items():
        call = make(4)
        for _ in range(_ROUNDS):
            call.run()
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
