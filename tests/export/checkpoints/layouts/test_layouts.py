# SPDX-License-Identifier: BSD-3-Clause
"""The layouts of other producers: which is asked first, and what several of them find together."""

from types import SimpleNamespace

import pytest
import torch

from blockscale.export.checkpoints import layouts
from blockscale.export.checkpoints.layouts import LayoutTensors, Weight, find_weights
from blockscale.files.metadata import FileError

KINDS = dict.fromkeys(("a", "b", "c", "d"), (torch.uint8, (4,)))


def taking(producer, methods, *names, weight=None):
    """A layout that takes these stored names, if it is shown them."""

    def find(kinds, config, read):
        found = LayoutTensors()
        for name in names:
            if name in kinds:
                found.evidence = f"{producer} has {name}"
                found.add(weight or f"{name}.weight", Weight(producer, (4,), {"codes": name}))
        return found

    return SimpleNamespace(PRODUCER=producer, METHODS=methods, find=find)


def test_the_configuration_s_method_is_asked_first(monkeypatch):
    all_of_them = [
        taking("anybody", (), "a", "b", "c", "d"),
        taking("first", ("one",), "a", "b"),
        taking("second", ("two", "zwei"), "b", "c"),
    ]
    monkeypatch.setattr(layouts, "layouts", lambda: all_of_them)
    found = find_weights(KINDS, {"quant_method": "zwei"}, lambda names: {})
    assert found.producers == {
        "a.weight": "first", "b.weight": "second", "c.weight": "second", "d.weight": "anybody",
    }  # fmt: skip
    assert found.beside == set(KINDS)
    assert found.evidence == "second has c; first has a; anybody has d"
    found = find_weights(KINDS, {}, lambda names: {})
    assert found.producers["b.weight"] == "first"


def test_a_weight_twice(monkeypatch):
    both = [taking("x", ("x",), "a", weight="w"), taking("y", ("y",), "b", weight="w")]
    monkeypatch.setattr(layouts, "layouts", lambda: both)
    with pytest.raises(FileError, match=r"^w appears twice, once in the layout of y$"):
        find_weights(KINDS, {}, lambda names: {})
    monkeypatch.setattr(layouts, "layouts", lambda: [taking("x", ("x",), "a", weight="b")])
    with pytest.raises(FileError, match=r"^b appears twice, once in the layout of x$"):
        find_weights(KINDS, {}, lambda names: {})


def test_every_layout_says_whose_it_is():
    for module in layouts.layouts():
        assert isinstance(module.PRODUCER, str) and module.PRODUCER
        assert isinstance(module.METHODS, tuple)
        empty = module.find({}, {}, lambda names: {})
        assert (empty.weights, empty.beside, empty.evidence) == ({}, set(), "")
