# SPDX-License-Identifier: BSD-3-Clause
"""A named format: six-bit integers in groups of 64."""

# Goes to:   blockscale/core/parse.py, as one more line of CATALOG.
# Its test:  none of its own. Every test that enumerates the named formats takes it in, and
#            `make docs` gives it a row in docs/formats.md, which tests/test_generated.py asks for.

LINE = """
    "int6": "int6:group64:fp32",
"""
