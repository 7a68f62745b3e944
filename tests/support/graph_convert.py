# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/graph/test_conversion.py: `converted`."""

import blockscale as bs
from tests.support.graph_models import run


def converted(made, recipe, **options):
    _, program, batches = made
    prepared = bs.graph.prepare(program, recipe, **options)
    for batch in batches:
        run(prepared, batch)
    return bs.graph.convert(prepared)
