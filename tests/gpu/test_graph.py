# SPDX-License-Identifier: BSD-3-Clause
"""Graphs lowered to CUDA: what they compute is near the reference, end to end.

Needs CUDA: `pytest -m gpu tests/gpu`.
"""

import json

import pytest
import torch

import blockscale as bs
from tests.graph import flows
from tests.support import graph_models as models
from tests.support.graph_convert import converted
from tests.support.graph_models import run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "int8_token", "mxfp8"])
@pytest.mark.parametrize("made", [models.bert, models.net])
def test_lowered_to_cuda(made, fmt):
    fused = bs.graph.fuse(converted(made(), bs.Recipe("int8_channel", fmt)))
    graph = bs.graph.lower(fused, "cuda")
    batch = made()[2][1]
    moved = (
        {n: t.cuda() for n, t in batch.items()}
        if isinstance(batch, dict)
        else tuple(t.cuda() for t in batch)
    )
    with bs.use("reference"):
        expected = run(fused, batch)
    found = run(graph, moved).cpu()
    cosine = torch.nn.functional.cosine_similarity(found.flatten(1), expected.flatten(1))
    assert cosine.min() > 0.99
    ways = {way.way for way in bs.graph.ways(graph)}
    assert ways <= {"kernel", "inside", "composed", "reference"}


@pytest.mark.parametrize("name", sorted(bs.formats()))
@pytest.mark.parametrize("part", ["weight", "weight and input"])
def test_every_format_as_the_table_says(name, part):
    """The column `cuda` of docs/formats.md."""
    found = flows.row(name, both=part == "weight and input", targets=("cuda",))
    recorded = json.loads(flows.TABLE.read_text())[name][part]
    assert found == {key: recorded[key] for key in found}, "run: python -m tests.graph.flows cuda"
