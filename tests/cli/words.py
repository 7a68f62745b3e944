# SPDX-License-Identifier: BSD-3-Clause
"""How the tests of commands read text."""


def words(text):
    """Lines whose columns are one space apart."""
    return [" ".join(line.split()) for line in text.splitlines()]
