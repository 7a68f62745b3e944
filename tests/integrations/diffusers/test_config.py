# SPDX-License-Identifier: BSD-3-Clause
"""BlockscaleConfig of diffusers: to and from JSON."""

import json

from tests.integrations.diffusers.models import DIFFUSERS

pytestmark = DIFFUSERS


def test_there_and_back() -> None:
    from blockscale.integrations.diffusers import BlockscaleConfig

    config = BlockscaleConfig("mxfp4", strict=True, seed=3)
    data = json.loads(json.dumps(config.to_dict()))
    assert BlockscaleConfig.from_dict(data) == config
    assert "mxfp4" in repr(config) or "e2m1" in repr(config)
