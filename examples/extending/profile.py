# SPDX-License-Identifier: BSD-3-Clause
"""A producer's rules: the made-up library acme halves nothing, truncates, and keeps fp16 scales."""

# Goes to:   blockscale/core/profiles/producers/acme.py
# Its test:  tests/core/profiles/producers/test_acme.py: 0 differing scales and codes against the
#            library itself, or its recorded output, on tests/support/profile_inputs.py.
# By itself: bs.profile("acme.int8"), bs.quantize with it, errors with its name, and the tests of
#            all profiles.

from blockscale.core.parse import parse
from blockscale.core.profiles.knobs import Profile

PROFILES = (
    Profile(
        name="acme.int8",
        version="2.1",
        format=parse("int8:group32:fp16"),
        blocks=("group",),
        before_cast=True,  # codes know the scale before it is rounded to fp16
        search="toward_zero",
    ),
)
