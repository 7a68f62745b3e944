# SPDX-License-Identifier: BSD-3-Clause
"""The contract itself: each named format by the rules of docs/numerics.md."""

from blockscale.core.parse import formats
from blockscale.core.profiles.knobs import Profile

PROFILES = tuple(
    Profile(name=f"blockscale.{name}", version="", format=fmt) for name, fmt in formats().items()
)
