# SPDX-License-Identifier: BSD-3-Clause
"""What is claimed: only what was measured."""

import blockscale as bs
from blockscale.selection.claims import claims_of
from tests.selection.models import CANDIDATES, batches, mlp


def test_a_claim_of_speed_needs_batches():
    one = bs.recommend(mlp(), 6, candidates=CANDIDATES)
    assert not [each for each in one.claims if "a batch will take" in each.text]
    two = bs.recommend(mlp(), 6, batches=batches(), candidates=CANDIDATES, progress=False)
    [speed] = [each for each in two.claims if "a batch will take" in each.text]
    assert bs.hardware().processor in speed.source
    assert f"{1e3 * two.foretold.seconds:.3f} ms" in speed.text
    assert callable(claims_of)
