# SPDX-License-Identifier: BSD-3-Clause
"""OCP Microscaling Formats (MX) 1.0, sections 5 and 6.3, with the rules that it recommends.

The shared scale is the largest power of two at most max |v| over that of the element's largest
value; elements saturate and round to nearest even. That is the contract's `floor`, which section
6.3 has its name from; a block of zeros, whose scale the page leaves open, gets byte 0.
"""

from blockscale.core.parse import parse
from blockscale.core.profiles.knobs import Profile

_ELEMENTS = {
    "mxfp8": "e4m3",
    "mxfp8_e5m2": "e5m2",
    "mxfp6": "e3m2",
    "mxfp6_e2m3": "e2m3",
    "mxfp4": "e2m1",
    "mxint8": "int8",
}
PROFILES = tuple(
    Profile(name=f"ocp.{name}", version="1.0", format=parse(f"{element}:group32:e8m0/floor"))
    for name, element in _ELEMENTS.items()
)
