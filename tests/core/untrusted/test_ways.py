"""How many ways Python's matcher may try."""

import math
from re import _parser as parser

import pytest

from blockscale.core.untrusted.ways import SHORT, ways


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("abc[d-f].", 1),
        (".*", SHORT + 1),
        ("(a|bb|c)d(ee|f)", 6),
        (r".*\.(qq|k|v)", 3 * (SHORT + 1)),
        ("(q|k|v)", 1),  # Python makes a set of them,
        ("a?b?", 4),
        ("a{3}(bc){2,4}", 3),
        ("(?=.*a).*", (SHORT + 1) ** 2),
        ("((aa|b)c)?", 3),
        ("(a+)+", math.inf),
        ("(?:(?:aa|b)c)*", math.inf),
        ("(?:.*){2}", math.inf),
    ],
)
def test_choices_multiply(pattern, count):
    assert ways(parser.parse(pattern)) == count
