# SPDX-License-Identifier: BSD-3-Clause
"""For tests of what goes with an object that nobody needs any more."""

import gc


def set_aside() -> None:
    """From here on `gc.collect()` looks at what comes now alone: at all that a run of tests has
    made it takes a second. What is there stays, garbage in cycles too, so a number of things
    counted after this falls by what the test itself lets go."""
    gc.collect(1)
    gc.freeze()
