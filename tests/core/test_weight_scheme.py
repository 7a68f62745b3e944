# SPDX-License-Identifier: BSD-3-Clause
"""What one layer gets: formats, and by which profile the codes of its weight are chosen."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles import names
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.weight_scheme import (
    PARTS,
    for_rows,
    names_profile,
    profile_spelling,
    read_parts,
    read_profile,
    read_rule,
)

MIXED = Recipe(
    "profile:gguf.q8_0",
    rules={
        "a": "profile:gptq.int4@0.7:group64",
        "b": {"input": "int8"},
        "c": "int8_channel",
        "d": None,
        "e": {"weight": bs.profile("gguf.q4_k"), "bias": "int32"},
        "f": {"weight": None},
    },
)


def test_recipes_keep_profiles_with_their_versions() -> None:
    found = {name: MIXED.decide(name)[0] for name in "abcdefg"}
    told = {name: each.profile and str(each.profile) for name, each in found.items()}
    assert told == {
        "a": "gptq.int4:group64", "b": "gguf.q8_0", "c": None, "d": None, "e": "gguf.q4_k",
        "f": None, "g": "gguf.q8_0",
    }  # fmt: skip
    assert all(each.weight == each.profile.format for each in found.values() if each.profile)
    text = MIXED.to_dict()
    assert text["weight"] == "profile:gguf.q8_0@0.19.0"
    assert text["rules"]["a"]["weight"] == "profile:gptq.int4@0.7.1:group64"
    for back in (
        Recipe.from_json(MIXED.to_json()),
        pickle.loads(pickle.dumps(MIXED)),
        copy.deepcopy(MIXED),
        replace(MIXED),
    ):
        assert back == MIXED and list(back.rules) == list(MIXED.rules)
        assert hash(back) == hash(MIXED)
    assert replace(MIXED, skip=("x",)).profile == MIXED.profile
    assert replace(MIXED, weight="int8:group32:fp16:full", profile=None) != MIXED
    assert Recipe.read(bs.profile("gguf.q8_0")) == Recipe.read("profile:gguf.q8_0")


def test_a_profile_and_another_format() -> None:
    with pytest.raises(
        ValueError, match=r"format of profile gguf.q8_0 is int8:group32.*profile=No"
    ):
        replace(MIXED, weight="int4")


def test_only_weights_have_profiles() -> None:
    for part in PARTS[1:]:
        for text in ("profile:gguf.q8_0", bs.profile("gguf.q8_0")):
            with pytest.raises(ValueError, match=rf"^{part}: 'profile:gguf.q8_0.*takes a format"):
                read_parts({part: text}, Scheme())
    with pytest.raises(
        ValueError,
        match=r"unknown profile 'gguf.q9': did you mean gguf.q8_0, gguf.q6_k, gguf.q5_k.",
    ):
        read_rule("a", "profile:gguf.q9", Scheme())


def test_refused_by_the_rule_that_has_it() -> None:
    later = Recipe("int8", rules={"x.*": "profile:gguf.q8_0"})
    with pytest.raises(ValueError, match=r"rule 'x..' has the profile gguf.q8_0: no"):
        later.refuse_profiles("no")
    with pytest.raises(ValueError, match=r"the recipe: its weight has the profile gguf.q8_0: no"):
        MIXED.refuse_profiles("no")
    plain = Recipe("int8")
    assert plain.refuse_profiles("no") is plain


def test_scales_in_the_dtype_of_the_weight() -> None:
    scheme = read_parts({"weight": "profile:quanto.qint8"}, Scheme())
    assert str(scheme.of_weight(torch.bfloat16, (8, 64)).weight) == "int8:channel0:bf16:full"
    assert scheme.note == "weight by profile quanto.qint8 0.2.7" and Scheme().note == ""
    assert Scheme().of_weight(torch.bfloat16, (8, 64)) == Scheme()


# llama.cpp's src/llama-quant.cpp, tensor_type_fallback
LLAMA_QUANTIZE = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    "tq1_0": "q4_0", "tq2_0": "q4_0", "iq4_xs": "iq4_nl",
}  # fmt: skip


@pytest.mark.parametrize("name", LLAMA_QUANTIZE)
def test_rows_that_are_no_whole_blocks(name: str) -> None:
    """The producer's own choice for rows of 384; none for rows that have no blocks of 32 either."""
    profile = bs.profile(f"gguf.{name}")
    assert str(for_rows(profile, (8, 384))) == f"gguf.{LLAMA_QUANTIZE[name]}"
    for shape in ((8, 512), (8, 48), ()):
        assert for_rows(profile, shape) is profile
    scheme = Scheme(weight=profile.format, profile=profile)
    other = scheme.of_weight(torch.float32, (8, 384))
    assert other.weight == bs.profile(f"gguf.{LLAMA_QUANTIZE[name]}").format
    why = f"rows of 384 do not divide into blocks of 256 (gguf.{name})"
    assert other.note == f"weight by profile gguf.{LLAMA_QUANTIZE[name]} 0.19.0: {why}"
    assert scheme.of_weight(torch.float32, (8, 512)) == scheme


def test_profiles_without_another() -> None:
    assert for_rows(bs.profile("gguf.q8_0"), (8, 48)) is bs.profile("gguf.q8_0")


@pytest.mark.parametrize("name", names())
def test_every_profile_reads_back(name: str) -> None:
    profile = bs.profile(name)
    text = profile_spelling(profile)
    assert text == f"profile:{name}" + (f"@{profile.version}" if profile.version else "")
    assert read_profile(text) is profile and read_profile(f"profile:{name}") is profile


def test_version_and_block() -> None:
    profile = read_profile(" profile:gptq.int4@0.7:group64 ")
    assert profile == bs.profile("gptq.int4:group64", "0.7.1")
    assert profile_spelling(profile) == "profile:gptq.int4@0.7.1:group64"
    assert names_profile("profile:x") and not names_profile("int8") and not names_profile(None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "profile:gguf.q9_0",
            "unknown profile 'gguf.q9_0': did you mean gguf.q8_0, gguf.q5_0, gguf.q4_0.",
        ),
        ("profile:gguf.q8_0@9.9", "unknown version '9.9' of profile gguf.q8_0; choose from 0.19.0"),
        ("profile:gguf.q8_0@", "'profile:gguf.q8_0@' has no version after '@'"),
        (
            "profile:gguf.q8_0:group64",
            "profile gguf.q8_0: its block must be group32, it has no other",
        ),
    ],
)
def test_there_is_no_such(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_profile(text)


def test_a_profile_of_ones_own_has_no_text() -> None:
    for own in (
        replace(bs.profile("gguf.q8_0"), name="mine.q8_0"),
        replace(bs.profile("torchao.int8"), levels=126.0),
    ):
        words = rf"^bs.profile does not know the profile {own.name}, so a recipe cannot name it:"
        with pytest.raises(ValueError, match=words):
            profile_spelling(own)
        with pytest.raises(ValueError, match=words):
            bs.Recipe(own)
