# SPDX-License-Identifier: BSD-3-Clause
"""Recipes: JSON both ways, what a pattern covers, who decides, and words for every mistake."""

import json
import os
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.parse import CATALOG, parse
from blockscale.core.recipe import Recipe, Scheme, matches, read_bias

NONE = Scheme()
QUICK = settings(max_examples=100)

formats = st.one_of(st.none(), st.sampled_from([*CATALOG, "int5:group7@0:bf16:stochastic"]))
biases = st.one_of(st.sampled_from(["int32", "int16:sums", SumInteger(24)]), formats)
words = st.sampled_from(["a", "b", "lm_head", "layers", "0", "1", "10", "[x]", "q.k"])
names = st.lists(words, min_size=1, max_size=4).map(".".join)
pieces = st.sampled_from(["a", "b", "layers", "lm_head", "0", "1", ".", "*", "?", "re", ":"])
globs = st.lists(pieces, max_size=5).map("".join).filter(lambda p: not p.startswith("re:"))
patterns = st.one_of(globs, names.map(lambda n: "re:" + re.escape(n)), st.just(r"re:(a|b)\.\d+"))
mappings = st.builds(
    lambda parts, bias: parts | bias,
    st.dictionaries(st.sampled_from(["weight", "input", "output"]), formats),
    st.dictionaries(st.just("bias"), biases),
)
rules = st.dictionaries(patterns, st.one_of(formats, mappings), max_size=4)
skips = st.lists(patterns, max_size=3)
recipes = st.builds(Recipe, formats, formats, formats, rules=rules, skip=skips, bias=biases)


@pytest.mark.slow
@QUICK
@given(recipes, st.lists(names, max_size=5))
def test_json_reads_back(recipe: Recipe, layers: list[str]) -> None:
    back = Recipe.from_json(recipe.to_json())
    assert back == recipe
    assert list(back.rules) == list(recipe.rules)  # == of dicts ignores order, the first match not
    assert back.to_json() == recipe.to_json()
    assert [back.decide(name) for name in layers] == [recipe.decide(name) for name in layers]
    assert json.loads(recipe.to_json()) == recipe.to_dict()
    assert Recipe.read(recipe.to_json()) == recipe


def covers(pattern: str, name: str) -> bool:
    """A second opinion: the pattern matches the whole name, or a whole dotted beginning of it."""
    if pattern.startswith("re:"):
        regex = pattern[3:]
    else:
        regex = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    parts = name.split(".")
    beginnings = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(re.compile(regex).fullmatch(each) is not None for each in beginnings)


@pytest.mark.slow
@QUICK
@given(patterns, names)
def test_what_a_pattern_covers(pattern: str, name: str) -> None:
    assert matches(pattern, name) == covers(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("layers.1", "layers.1", True),
        ("layers.1", "layers.1.mlp.up", True),  # everything below
        ("layers.1", "layers.10", False),
        ("layers.1", "model.layers.1", False),  # anchored at the start
        ("*.1", "model.layers.1.mlp", True),
        ("LM_head", "lm_head", False),
        ("layers.[02]", "layers.2.mlp", True),
        ("layers.[!02]", "layers.2", False),
        ("", "", True),  # the model itself
        (r"re:layers\.\d", "layers.12", False),  # the whole name, not the beginning of a word
        (r"re:layers\.\d", "layers.1.mlp", True),
        (r"re:a|b", "b.c", True),
        (r"re:a|b", "ac", False),
    ],
)
def test_edges_of_patterns(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_skip_first_then_the_first_rule() -> None:
    recipe = Recipe(
        "int8",
        "mxfp8",
        rules={"a.b": "mxfp4", "a": {"weight": "int4"}, "z": None, "i": {"input": None}},
        skip=["a.b.c"],
    )
    assert recipe.decide("a.b.c.d") == (NONE, "a.b.c")
    assert recipe.decide("a.b") == (Scheme(parse("mxfp4"), parse("mxfp8")), "a.b")
    assert recipe.decide("a.x") == (Scheme(parse("int4"), parse("mxfp8")), "a")
    assert recipe.decide("z.q") == (NONE, "z")
    assert recipe.decide("i") == (Scheme(parse("int8"), None), "i")
    assert recipe.decide("other") == (Scheme(parse("int8"), parse("mxfp8")), None)


def test_a_bias_follows_its_layer_or_is_named_itself() -> None:
    recipe = Recipe(
        "int8",
        "int8",
        bias="int32",
        rules={"head.bias": {"bias": None}, "a": {"bias": "int8"}, "b": "int4", "*.free": None},
        skip=["c", "*.d.bias"],
    )
    assert recipe.bias_of("x") == recipe.bias_of("b") == SumInteger(32)
    assert recipe.bias_of("a") == recipe.bias_of("a.q") == parse("int8")
    for name in ("head", "c", "c.q", "x.d", "x.free"):
        assert recipe.bias_of(name) is None
    assert recipe.decide("head")[0] == Scheme(parse("int8"), parse("int8"), None, SumInteger(32))
    assert recipe.has_biases
    assert Recipe("int8", rules={"a": {"bias": "int32"}}).has_biases
    assert not Recipe("int8", rules={"a": {"bias": None}}).has_biases


def test_json_without_a_bias_is_what_the_first_release_reads() -> None:
    recipe = Recipe("int8", rules={"a": {"input": "int8"}})
    assert recipe.to_dict()["rules"] == {
        "a": {"weight": "int8:tensor:fp32", "input": "int8:tensor:fp32", "output": None}
    }
    with_bias = Recipe("int8", "int8", bias="int32", rules={"a": {"bias": None}})
    assert with_bias.to_dict()["bias"] == "int32:sums"
    assert with_bias.to_dict()["rules"]["a"]["bias"] is None
    assert Recipe.from_json(with_bias.to_json()).bias_of("a") is None


def test_positions_are_those_of_the_first_release() -> None:
    recipe = Recipe("int8", "int8", None, {"a": None}, ["b"])
    assert (recipe.rules["a"], recipe.skip, recipe.bias) == (NONE, ("b",), None)
    given = Recipe("int8", "int8", bias="int32")
    assert pickle.loads(pickle.dumps(given)) == given
    assert hash(given) != hash(Recipe("int8", "int8"))
    assert Recipe(**given.to_dict()) == given


def test_a_pattern_that_was_accepted_never_fails_later() -> None:
    try:
        recipe = Recipe("int8", skip=["re:(?i)LM_HEAD"])
    except ValueError:
        return  # refusing it in words is fine; failing in the middle of a model is not
    assert recipe.decide("model.lm_head") == (Scheme(parse("int8")), None)
    assert recipe.decide("lm_head.x") == (NONE, "re:(?i)LM_HEAD")


def test_reading_sources(tmp_path) -> None:
    recipe = Recipe("mxfp4", "mxfp8", rules={"a": "int8"}, skip=["b"])
    file = tmp_path / "recipe.json"
    file.write_text(recipe.to_json())
    for source in (recipe, file, str(file), f"  {recipe.to_json()}\n"):
        assert Recipe.read(source) == recipe
    for source in ("mxfp4", " mxfp4 ", parse("mxfp4"), "e2m1:group32:e8m0"):
        assert Recipe.read(source) == Recipe("mxfp4")
    with pytest.raises(ValueError, match=r"the recipe file '.*gone.json'"):
        Recipe.read(tmp_path / "gone.json")
    with pytest.raises(ValueError, match=r"unknown format 'recipe': .*named formats are int8"):
        Recipe.read("recipe")


def test_a_dict_is_read_or_refused_as_a_dict() -> None:
    """It is what people write first; "the recipe is not JSON" would be beside the point."""
    try:
        recipe = Recipe.read({"weight": "int8"})
    except TypeError:
        return
    assert recipe == Recipe("int8")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"weigth": "int8"},
            "unknown recipe key 'weigth'; choose from bias, calibration, fused, input, output, ",
        ),
        ({"weight": "int99"}, "unknown format 'int99': did you mean"),
        ({"weight": "int8:tensor:fp33"}, "unknown scale 'fp33'; choose from fp32"),
        (
            {"rules": {"a": {"wieght": "int8"}}},
            "rule 'a': unknown key 'wieght'; choose from weight",
        ),
        ({"rules": {"a": "int99"}}, "rule 'a': unknown format 'int99'"),
        ({"skip": ["re:("]}, r"pattern 're:\(' is not a regular expression"),
        ({"rules": {"re:[": None}}, r"pattern 're:\[' is not a regular expression"),
        ({"skip": "lm_head"}, r"skip must be a list of patterns: write \['lm_head'\]"),
        ({"weight": 8}, "expected a Format or its spelling, found an int"),
        ({"weight": "int32"}, "unknown format 'int32'"),
        (
            {"bias": "bf16"},
            "bias: unknown format 'bf16': .*; a bias can also be 'int32', short for",
        ),
        ({"bias": "int40:sums"}, "int40:sums: a bias must have 2 to 32 bits"),
        ({"rules": {"a": {"bias": "int32:tensor"}}}, "rule 'a': bias: 'int32:tensor'"),
        ([], "a recipe must be a JSON object, found a list"),
        (None, "a recipe must be a JSON object, found None"),
    ],
)
def test_mistakes(data, words: str) -> None:
    for build in (Recipe.from_dict, lambda d: Recipe.from_json(json.dumps(d))):
        with pytest.raises((ValueError, TypeError), match=words):
            build(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"skip": None}, "skip"),
        ({"skip": 5}, "skip"),
        ({"skip": [5]}, "skip|pattern"),
        ({"skip": {"lm_head": True}}, "skip"),  # would skip, and drop what it is mapped to
        ({"rules": ["lm_head"]}, "rules"),
        ({"rules": 5}, "rules"),
        ({"rules": {"a": 5}}, "rule 'a'"),
        ({"rules": {"a": ["weight"]}}, "rule 'a'"),
        ({"rules": {"a": {"weight": 5}}}, "expected a Format or its spelling, found an int"),
    ],
)
def test_values_of_a_wrong_type_are_named(data, words: str) -> None:
    """A recipe file is written by hand: an AttributeError from inside says nothing about it."""
    with pytest.raises((ValueError, TypeError), match=words):
        Recipe.from_json(json.dumps(data))


def test_text_that_is_not_json() -> None:
    with pytest.raises(ValueError, match=r"the recipe is not JSON: .*line 1 column 2"):
        Recipe.from_json("{weight: int8}")


def test_a_recipe_is_a_value() -> None:
    skip = ["a"]
    recipe = Recipe("int8", skip=skip)
    skip.append("b")
    assert recipe.skip == ("a",)
    assert recipe == Recipe("int8:tensor:fp32", skip=("a",))
    assert recipe != Recipe("int8", skip=["a", "a"])
    with pytest.raises(AttributeError):
        recipe.weight = None  # type: ignore[misc]
    assert Recipe().to_dict() == {}
    assert not Recipe().default


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("int32", "int32:sums"),
        (" int32 ", "int32:sums"),
        ("int32:sums", "int32:sums"),
        ("int16:sums", "int16:sums"),
        ("int2:sums", "int2:sums"),
        (SumInteger(24), "int24:sums"),
        ("int8", "int8:tensor:fp32"),
        ("int16", "int16:tensor:fp32"),  # a name means in every part what it means in a weight
        ("e4m3:channel0:fp32", "e4m3:channel0:fp32"),
        (parse("mxfp8"), "e4m3:group32:e8m0/floor"),
    ],
)
def test_spellings(text, spelled: str) -> None:
    assert str(read_bias(text)) == spelled
    assert read_bias(spelled) == read_bias(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "bf16",
            r"bias: unknown format 'bf16': .*; a bias can also be 'int32', short for 'int32:sums'",
        ),
        ("int64", "bias: unknown format 'int64'"),
        ("int33:sums", "int33:sums: a bias must have 2 to 32 bits"),
        ("int1:sums", "int1:sums: a bias must have 2 to 32 bits"),
        ("uint8:sums", "bias: 'uint8:sums'"),
        ("int32:tensor:fp32", "bias: 'int32:tensor:fp32'"),
    ],
)
def test_spellings_that_are_none(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_bias(text)
    with pytest.raises(TypeError, match="expected a Format or its spelling, found an int"):
        read_bias(32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "told"), [(None, "None"), (4, "an int"), (["mxfp4"], "a list"), (parse, "a function")]
)
def test_what_is_no_recipe(wrong: object, told: str) -> None:
    expected = f"^expected a Recipe, a format, a mapping or a JSON file, found {told}$"
    with pytest.raises(TypeError, match=expected):
        Recipe.read(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{" * 5000, "the recipe is not JSON"),
        ('{"skip":' + "[" * 5000 + "]" * 5000 + "}", "too deep"),
        ('{"weight": "int8", "weight": "int4"}', "the key 'weight' appears twice"),
        ('{"weight": "int8", "rules": {"a": null, "a": "int4"}}', "the key 'a' appears twice"),
        ('{"weight": NaN}', "the recipe is not JSON: NaN is not a JSON number"),
        ('{"skip": ["re:(a)\\\\1"]}', "a reference to a group"),
        ('{"skip": ["' + "a" * 1001 + '"]}', "is too long: at most 1,000 characters"),
    ],
)
def test_hostile_json(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Recipe.read(text)
    assert len(str(caught.value)) < 500


def test_files_that_are_no_recipes(tmp_path) -> None:
    path = tmp_path / "recipe.json"
    os.mkfifo(path)  # reading it waited for a writer
    with pytest.raises(ValueError, match="not a regular file"):
        Recipe.read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="not a regular file"):
        Recipe.read(path)


def test_patterns_of_strangers_take_no_time() -> None:
    """Each of them took Python's own matching longer than anybody waits."""
    name = "layers.0." + "a" * 60
    recipe = Recipe("int8", skip=["re:(.*a)*b", r"re:(\w+\.?)+-", "*a" * 30 + "b"])
    assert recipe.decide(name) == (recipe.default, None)
