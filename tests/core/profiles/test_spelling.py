"""Profiles as recipes spell them: there and back, with version and block, and words for slips."""

from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.core.profiles import names
from blockscale.core.profiles.spelling import names_profile, read_profile, spelled


@pytest.mark.parametrize("name", names())
def test_every_profile_reads_back(name: str) -> None:
    profile = bs.profile(name)
    text = spelled(profile)
    assert text == f"profile:{name}" + (f"@{profile.version}" if profile.version else "")
    assert read_profile(text) is profile and read_profile(f"profile:{name}") is profile


def test_version_and_block() -> None:
    profile = read_profile(" profile:gptq.int4@0.7:group64 ")
    assert profile == bs.profile("gptq.int4:group64", "0.7.1")
    assert spelled(profile) == "profile:gptq.int4@0.7.1:group64"
    assert names_profile("profile:x") and not names_profile("int8") and not names_profile(None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profile:gguf.q9_0", "no profile 'gguf.q9_0': did you mean gguf.q"),
        ("profile:gguf.q8_0@9.9", "no version '9.9' of profile gguf.q8_0; there are 0.19.0"),
        ("profile:gguf.q8_0@", "'profile:gguf.q8_0@' has no version after '@'"),
        ("profile:gguf.q8_0:group64", "profile gguf.q8_0: its block is group32, it has no other"),
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
        with pytest.raises(ValueError, match=r"none of those that bs.profile finds"):
            spelled(own)
        with pytest.raises(ValueError, match=r"none of those that bs.profile finds"):
            bs.Recipe(own)
