"""Graphs lowered to CUDA: what they compute is near the reference, end to end.

Needs CUDA: `pytest -m gpu tests/gpu`.
"""

import pytest
import torch

import blockscale as bs
from tests.graph import models
from tests.graph.models import run
from tests.graph.test_convert import converted

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
