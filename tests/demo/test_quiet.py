# SPDX-License-Identifier: BSD-3-Clause
"""What is kept from the terminal, and what comes back with an error."""

import os
import sys
import warnings

import pytest

from blockscale.demo.exports import quiet


def test_nothing_is_seen(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet():
            print("Python", file=sys.stderr)
            os.write(2, b"native\n")
            warnings.warn("a warning", stacklevel=1)
    print("after", file=sys.stderr)
    os.write(2, b"and after\n")
    assert capfd.readouterr().err == "after\nand after\n"


def test_an_error_brings_it_back(capfd):
    with pytest.raises(ValueError, match="why"), quiet():
        print("Python", file=sys.stderr, flush=True)
        os.write(2, b"native\n")
        raise ValueError("why")
    assert capfd.readouterr().err == "Python\nnative\n"


def test_the_standard_output_stays(capfd):
    with quiet():
        print("seen")
    assert capfd.readouterr().out == "seen\n"
