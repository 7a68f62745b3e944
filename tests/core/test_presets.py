# SPDX-License-Identifier: BSD-3-Clause
"""Presets as values: what they stand for, both ways, and words for every mistake."""

import copy
import json
import pickle
from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.core.parse import is_spelling
from blockscale.core.presets import (
    Calibration,
    cache_preset,
    closest_preset,
    own_patterns,
    preset_data,
    read_calibration,
)
from blockscale.core.recipe import Recipe

EVERY = bs.presets()
NAMES = [name for name, each in EVERY.items() if each.of == "recipe"]
CACHES = [name for name, each in EVERY.items() if each.of == "cache"]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_reads_back_as_itself(name):
    recipe = bs.preset(name, skip=["model.layers.0"], rules={"*.v_proj": "mxfp8"})
    assert recipe.preset == name
    for back in (
        Recipe.from_json(recipe.to_json()),
        Recipe.read(recipe.to_dict()),
        pickle.loads(pickle.dumps(recipe)),
        copy.deepcopy(recipe),
        replace(recipe),
    ):
        assert back == recipe
        assert hash(back) == hash(recipe)
    assert Recipe.read(name) == bs.preset(name)
    assert not is_spelling(name)  # a format's name would hide it


@pytest.mark.parametrize("name", NAMES)
def test_the_saved_form_says_everything(name):
    told = bs.preset(name).to_dict()
    assert {"preset": name, **bs.presets()[name].data} == told | {
        part: bs.presets()[name].data[part]
        for part in ("weight", "input")
        if part in told  # spelled out there
    }
    del told["preset"]
    assert replace(bs.preset(name), preset=None) == Recipe.from_dict(told)


def test_a_name_alone_is_what_the_preset_is_and_formats_stand_for_themselves():
    short = Recipe.from_dict({"preset": "w4a16", "skip": ["head"], "rules": {"a": "int8"}})
    assert short == bs.preset("w4a16", skip=["head"], rules={"a": "int8"})
    assert short.skip == ("head", *bs.preset("w4a16").skip)
    old = {"preset": "gone in this release", "weight": "int8"}
    assert Recipe.from_dict(old) == Recipe("int8", preset="gone in this release")
    other = Recipe.from_dict({"preset": "w4a16", "calibration": {"weight": "hqq"}})
    assert other.calibration == Calibration(weight="hqq")
    assert other.weight == bs.preset("w4a16").weight


def test_own_patterns_need_not_match():
    recipe = bs.preset("w8a8", skip=["nothing"])
    assert recipe.unmatched(["model.layers.0"]) == ("nothing",)
    assert own_patterns("w8a8") >= {"*lm_head", "*embed_tokens"}
    assert own_patterns("no such") == own_patterns(None) == frozenset()


@pytest.mark.parametrize(
    "name", ["lm_head", "model.lm_head", "model.embed_tokens", "transformer.wte", "embed_out"]
)
def test_the_ends_of_decoders_stay_in_float(name):
    scheme, pattern = bs.preset("w4a16").decide(name)
    assert not scheme
    assert pattern in own_patterns("w4a16")


def test_without_calibration():
    recipe, notes = bs.preset("w4a16").uncalibrated()
    assert recipe == replace(bs.preset("w4a16"), calibration=None)
    assert notes[0].startswith(
        "preset w4a16 asks for a calibration (transform awq, weight gptq) that did not happen: "
        "there is no data"
    )
    assert recipe.uncalibrated() == (recipe, ())
    named = Recipe("int4", calibration={"weight": "gptq"}).uncalibrated("because")[1]
    assert named == (
        "the recipe asks for a calibration (weight gptq) that did not happen: because",
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: bs.preset("w4a17"), r"unknown preset 'w4a17'; choose from w4a16, w4a16-nvfp4, w"),
        (lambda: preset_data(4), r"unknown preset 4; choose from w4a16"),
        (lambda: bs.preset("w8a8", skip="lm_head"), r"skip must be a list .*: write \['lm_head'\]"),
        (
            lambda: bs.preset("w8a8", rules={"fc*": "int99"}),
            r"rule 'fc\*': unknown format 'int99'",
        ),
        (lambda: Recipe.read("w4a17"), "unknown format 'w4a17': .*; presets are w4a16, w4a16-nv"),
        (
            lambda: Recipe("int8", calibration={"wieght": "gptq"}),
            "calibration: unknown key 'wieght'; choose from weight, transform, observer",
        ),
        (
            lambda: Recipe("int8", calibration={"weight": 3}),
            "calibration: weight must be a name, such as 'gptq', got 3: pass an instance to bs",
        ),
        (
            lambda: Recipe("int8", calibration="gptq"),
            "calibration must be an object with weight, transform, observer, bias, got 'gptq'",
        ),
        (lambda: Recipe("int8", preset=3), "preset must be a name, got 3"),
    ],
)
def test_mistakes(build, words):
    with pytest.raises((ValueError, TypeError), match=words):
        build()


def test_nothing_to_calibrate_is_none():
    assert read_calibration({}) is None
    assert Recipe("int8", calibration={}) == Recipe("int8")
    assert str(Calibration("gptq", "awq")) == "transform awq, weight gptq"


@pytest.mark.parametrize("name", CACHES)
def test_keys_and_values_are_no_recipe(name):
    """As a user would ask for one: by name, on the command line, in a config."""
    words = rf"preset '{name}' is of keys and values, .*QuantizedCache\(model.config, '{name}'\)"
    for ask in (bs.preset, Recipe.read, lambda name: Recipe.from_dict({"preset": name})):
        with pytest.raises(ValueError, match=words):
            ask(name)
    assert cache_preset(name) == dict(EVERY[name].data)
    assert cache_preset("int8_token") == {"values": "int8_token"}
    assert EVERY[name].to_dict()["cache"] == cache_preset(name)
    assert not is_spelling(name)
    assert (EVERY[name].formats[0], EVERY[name].how[:9]) == (EVERY[name].formats[1], "window of")
    with pytest.raises(ValueError, match=r"preset 'w8a8' is of weights; those of keys .* kv8, kv4"):
        cache_preset("w8a8")


def test_what_caches_reached():
    (eight,), (four,) = (EVERY[name].figures for name in ("kv8", "kv4"))
    assert eight.kl < 0.0005
    assert four.kl < 0.005


@pytest.mark.parametrize("name", list(EVERY))
def test_figures_are_measurements(name):
    told = bs.presets()[name].to_dict()
    assert json.loads(json.dumps(told))["name"] == name
    for figure in bs.presets()[name].figures:
        assert figure.family in ("decoder", "encoder", "convolutions")
        assert figure.date
        assert str(figure)


def test_what_the_twin_reached():
    """The targets of docs/real_models.md, read from where they were measured."""
    most = {"w8a8": 0.015, "w4a16": 0.12, "w4a4-nvfp4": 0.30, "w4a4-mxfp4": 0.60}
    for name, bound in most.items():
        (figure,) = (f for f in bs.presets()[name].figures if f.family == "decoder")
        assert figure.added < bound


@pytest.mark.parametrize("name", [name for name in NAMES if bs.preset(name).calibration])
def test_a_preset_is_the_closest_to_its_own_formats(name):
    recipe = bs.preset(name)
    if recipe.calibration.observer is None:  # all of it is the default anyhow
        assert closest_preset([(recipe.weight, recipe.input)]) == name


@pytest.mark.parametrize(
    ("formats", "name"),
    [
        ([("int3:group32:fp16", None)], "w4a16"),
        ([("uint4:group64:fp16:asym", "int8_token")], "w4a16"),
        ([("nf4:group64:fp16", None)], "w4a16"),
        ([("mxfp4", None)], "w4a16"),
        ([("nvfp4_e5m3", "mxfp8")], "w4a16-nvfp4"),
        ([("mxfp4", "mxfp4")], "w4a4-mxfp4"),
        ([("nvfp4", "nvfp4_token")], "w4a4-nvfp4"),
        ([("int4:group32:fp16", "int4:group32:fp16")], "w4a4-nvfp4"),
        ([("int8:group64:fp16", "int8")], "w8a8"),
        ([("int8_channel", None)], None),  # rounding loses .006
        ([("int8_channel", "int8_channel"), ("int4:group32:fp16", None)], "w4a16"),
        ([("int8_pow2", "int8_pow2")], None),  # integers throughout: no float factors between
        ([("int16", "int16")], None),
        ([("mxfp8", "mxfp8")], None),
        ([("ternary:channel0:fp32", None)], None),
        ([("book4:group64:fp16", None)], None),
        ([("e2m1:group32:e8m0/given", None)], None),
        ([("int4:group32:fp16", None), ("int4:group32:fp16:stochastic", None)], None),
        ([("uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)", None)], None),
        ([], None),
    ],
)
def test_the_closest_preset(formats, name):
    pairs = [(bs.parse(weight), taken and bs.parse(taken)) for weight, taken in formats]
    assert closest_preset(pairs) == name
