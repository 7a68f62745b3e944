# SPDX-License-Identifier: BSD-3-Clause
"""fuse: fused graphs give the bits of converted ones, whatever made them."""

import copy
from operator import getitem

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.passes.fused import read
from blockscale.graph.pickled import state
from tests.support import graph_models as models
from tests.support.another import read_by_another
from tests.support.graph_convert import converted
from tests.support.graph_models import run
from tests.support.some import crossed

FORMATS = ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "int8_token", "mxfp8", "nvfp4", "bfp8",
           "int8:channel-1:fp32", "uint4:group16:fp16:offset", "nf4:group16:fp32"]  # fmt: skip


FEW = ("uint8:tensor:fp32:asym", "mxfp8")


@pytest.mark.slow
@pytest.mark.some(30)
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


@pytest.mark.slow
@pytest.mark.some(5)
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


@pytest.mark.slow
def test_programs_of_models_that_were_trained_before():
    model, _, batches = models.net()
    model = bs.prepare_qat(copy.deepcopy(model), bs.Recipe("int8_channel", "int8:tensor:fp32"))
    with torch.no_grad():
        model.train()(*batches[0])
    model = bs.convert(model.eval())
    fused = bs.graph.fuse(torch.export.export(model, batches[1]))
    with bs.use("reference"):
        assert torch.equal(run(fused, batches[1]), run(model, batches[1]))


@pytest.mark.slow
def test_a_fused_graph_is_saved_and_read(tmp_path):
    _, _, batches = models.bert()
    fused = bs.graph.fuse(converted(models.bert(), bs.Recipe("int8_channel", "int8:tensor:fp32")))
    bs.export.program(fused, tmp_path / "model.pt2")
    read = torch.export.load(tmp_path / "model.pt2").module()
    with bs.use("reference"):
        assert torch.equal(run(read, batches[1]), run(fused, batches[1]))


@pytest.mark.slow
@pytest.mark.parametrize("step", crossed(3, ["fused", "converted", "lowered"]))
def test_another_process_reads_a_program_and_computes_the_same(step, tmp_path):
    _, _, batches = models.net()
    graph = converted(models.net(), bs.Recipe("int8_channel", "uint8:tensor:fp32:asym"))
    if step != "converted":
        graph = bs.graph.fuse(graph)
    if step == "lowered":
        graph = bs.graph.lower(graph, "reference")
    bs.export.program(graph, tmp_path / "model.pt2")
    read_by_another(tmp_path, graph, batches[0][0], batches[1][0])


def test_what_is_no_graph():
    with pytest.raises(TypeError, match="expected a program, found a Net"):
        bs.graph.fuse(models.net()[0])


def conv(c: int = 8) -> nn.Conv2d:
    return nn.Conv2d(c, 8, 3, padding=1)


class Joined(nn.Module):
    """Two convolutions whose results are added, or put one behind the other."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.a, self.b = how, conv(), conv()
        self.c = conv(16 if how == "cat" else 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        z = self.b(y)
        if self.how == "cat":
            return self.c(torch.cat([y, torch.relu(z)], 1))
        return self.c(z + y if self.how == "sum" else torch.relu(z + y))


BETWEEN = {
    "gelu": nn.Sequential(conv(), nn.GELU(), conv()),
    "relu, flatten": nn.Sequential(conv(), nn.ReLU(), nn.Flatten(), nn.Linear(392, 3)),
    "relu, max pool": nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), conv()),
    "max pool, relu": nn.Sequential(conv(), nn.MaxPool2d(2), nn.ReLU(), conv()),
    "silu, max pool, flatten": nn.Sequential(
        conv(), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3)
    ),
    "sum": Joined("sum"),
    "sum, relu": Joined("sum, relu"),
    "cat": Joined("cat"),
}
# a sum's float side, and what it reads in float where nobody gave that a format
FLOATS = {"sum": ["conv"], "sum, relu": ["conv"]}
OURS = {"sum": ["conv", "conv"], "sum, relu": ["conv", "conv"]}


def from_us(net: nn.Module, x: Tensor):
    recipe = bs.Recipe("int8_channel", "uint8:tensor:fp32:asym")
    prepared = bs.graph.prepare(torch.export.export(net, (x,)), recipe, observer="min_max")
    prepared(x)
    return bs.graph.convert(prepared)


def from_others(kind: str):
    def made(net: nn.Module, x: Tensor):
        from tests.support.adopt_producers import MADE, program

        more = ("onednn",) if kind == "quantize_fx" else ()
        return program(MADE[kind](net, (x,), *more), (x,))

    return made


SOURCES = {"ours": from_us, "pt2e": from_others("pt2e"), "fx": from_others("quantize_fx")}


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize(("source", "between"), crossed(4, SOURCES, BETWEEN))
def test_what_lies_between_stays_in_codes(source: str, between: str) -> None:
    """Whoever quantized it: floats are read by what had no format alone, which the ledger says."""
    torch.manual_seed(0)
    x = torch.randn(2, 8, 7, 7)
    graph = SOURCES[source](BETWEEN[between].eval(), x)
    fused = bs.graph.fuse(graph)
    whole = graph.module() if isinstance(graph, torch.export.ExportedProgram) else graph
    with torch.no_grad(), bs.use("reference"):
        for batch in (x, x * 3, torch.randn(2, 8, 7, 7)):
            # the same codes; torch's sums of them depend on how they lie, on some processors
            torch.testing.assert_close(fused(batch), whole(batch), rtol=1e-6, atol=1e-6)
    floats = []
    for node in fused.graph.nodes:
        made = read(node)
        if made is None:
            continue
        ends = [u for each in node.users if each.target is getitem for u in after_moves(each)]
        reads = [
            each for each in ends if each.op != "output" and "quantize" not in str(each.target)
        ]
        if not made.y.fmt and reads:
            floats.append(made.fused.name)
    assert floats == {"ours": OURS, "pt2e": FLOATS, "fx": {}}[source].get(between, [])
    said = [e.name for e in bs.graph.ledger(fused) if "stays in float for add" in e.details]
    assert said == ["a", "b"][2 - len(floats) :]
    assert not [e for e in bs.graph.ledger(fused) if "scale" in e.name]


def after_moves(node):
    for user in node.users:
        moves = str(user.target) in ("aten.permute.default", "aten.contiguous.default")
        yield from after_moves(user) if moves else [user]


class Shared(nn.Module):
    """Two layers that read one tensor, which become one; a layer behind them, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.out(self.q(x) * self.k(x)) + x))


@pytest.mark.slow
def test_the_ledger_names_layers_whose_results_go_on_in_float():
    graph = from_us(Shared().eval(), torch.randn(3, 8))
    assert not [e for e in bs.graph.ledger(graph) if "in float" in e.details]
    once = bs.graph.fuse(graph)
    assert state(once).changes["merge_products"]
    for fused in (once, bs.graph.fuse(once)):
        told = {e.name: e.details.partition("stays in ")[2] for e in bs.graph.ledger(fused)}
        why = ", because it has no output format"
        assert told == {
            "q": f"float for mul{why}",
            "k": f"float for mul{why}",
            "out": f"float for add{why}",
            "last": "",
        }
