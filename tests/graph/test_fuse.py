"""fuse: fused graphs give the bits of converted ones, whatever made them."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale.graph.state import state
from tests.support import graph_models as models
from tests.support.another import read_by_another
from tests.support.another import reader as reader
from tests.support.graph_convert import converted
from tests.support.graph_models import run
from tests.support.some import crossed

FORMATS = ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "int8_token", "mxfp8", "nvfp4", "bfp8",
           "int8:channel-1:fp32", "uint4:group16:fp16:offset", "nf4:group16:fp32"]  # fmt: skip


FEW = ("uint8:tensor:fp32:asym", "mxfp8")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt", [pytest.param(f, marks=[pytest.mark.slow] * (f not in FEW)) for f in FORMATS]
)
@pytest.mark.parametrize("made", [models.bert, models.gpt2, models.net])
def test_fused_equals_converted(made, fmt):
    graph = converted(made(), bs.Recipe("int8_channel", fmt))
    fused = bs.graph.fuse(graph)
    with bs.use("reference"):
        for batch in made()[2]:
            assert torch.equal(run(fused, batch), run(graph, batch))
    assert state(fused).stage == "fused" and state(fused).changes
    targets = [str(node.target) for node in fused.graph.nodes]
    assert [t for t in targets if t.startswith("blockscale.fused_")]
    assert not [t for t in targets if t in ("aten.linear.default", "aten.conv2d.default")]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(bs.formats()))
def test_every_named_format_of_weights(name):
    _, _, batches = models.bert()
    graph = converted(models.bert(), bs.Recipe(name, "int8:tensor:fp32"))
    with bs.use("reference"):
        assert torch.equal(run(bs.graph.fuse(graph), batches[1]), run(graph, batches[1]))


@pytest.mark.parametrize("fmt", [None, "int8:tensor:fp32", "mxfp8"])
def test_programs_of_models_that_were_quantized_before(fmt):
    model, _, batches = models.net()
    model = copy.deepcopy(model)
    bs.calibrate(model, batches, bs.Recipe("int8_channel", fmt), progress=False)
    rows = torch.export.Dim("rows")
    program = torch.export.export(model, batches[0], dynamic_shapes=({0: rows},))
    fused = bs.graph.fuse(program)
    with bs.use("reference"):
        assert torch.equal(run(fused, batches[1]), run(model, batches[1]))
    found = {e.name: e.weight for e in bs.graph.ledger(fused).quantized}
    assert found == dict.fromkeys(("c1", "c2", "up", "c3", "c4", "fc"), "int8:channel0:fp32")


def test_programs_of_models_that_were_trained_before():
    model, _, batches = models.net()
    model = bs.prepare_qat(copy.deepcopy(model), bs.Recipe("int8_channel", "int8:tensor:fp32"))
    with torch.no_grad():
        model.train()(*batches[0])
    model = bs.convert(model.eval())
    fused = bs.graph.fuse(torch.export.export(model, batches[1]))
    with bs.use("reference"):
        assert torch.equal(run(fused, batches[1]), run(model, batches[1]))


def test_a_fused_graph_is_saved_and_read(tmp_path):
    _, _, batches = models.bert()
    fused = bs.graph.fuse(converted(models.bert(), bs.Recipe("int8_channel", "int8:tensor:fp32")))
    bs.export.program(fused, tmp_path / "model.pt2")
    read = torch.export.load(tmp_path / "model.pt2").module()
    with bs.use("reference"):
        assert torch.equal(run(read, batches[1]), run(fused, batches[1]))


@pytest.mark.parametrize("step", crossed(3, ["fused", "converted", "lowered"]))
def test_another_process_reads_a_program_and_computes_the_same(step, reader, tmp_path):
    _, _, batches = models.net()
    graph = converted(models.net(), bs.Recipe("int8_channel", "uint8:tensor:fp32:asym"))
    if step != "converted":
        graph = bs.graph.fuse(graph)
    if step == "lowered":
        graph = bs.graph.lower(graph, "reference")
    bs.export.program(graph, tmp_path / "model.pt2")
    read_by_another(reader, tmp_path, graph, batches[0][0], batches[1][0])


def test_what_is_no_graph():
    with pytest.raises(TypeError, match="expected a program, found a Net"):
        bs.graph.fuse(models.net()[0])
