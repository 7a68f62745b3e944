# SPDX-License-Identifier: BSD-3-Clause
"""Profiles: how producers choose scales and codes, by name. See blockscale.core.profiles.knobs."""

import difflib
from functools import cache

from blockscale.core import import_all
from blockscale.core.profiles import producers
from blockscale.core.profiles.knobs import Profile as Profile
from blockscale.core.untrusted import kind_of


def profile(name: str, version: str | None = None) -> Profile:
    """The profile of that name, `torchao.int8`, or with another block, `torchao.int8:tensor`.

    version: the producer's, "0.18.0" or its beginning, "0.18"; None for the newest that is known.
    Raises ValueError for names, versions and blocks that there are not, with those that there are.
    """
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a profile, found {kind_of(name)}")
    plain, colon, block = name.partition(":")
    by_name = _by_name()
    if plain not in by_name:
        close = difflib.get_close_matches(plain, by_name, 3, 0.6)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise ValueError(f"unknown profile {plain!r}: {hint}choose from {', '.join(by_name)}")
    results = [each for each in by_name[plain] if version is None or _is(each.version, version)]
    if not results:
        versions = ", ".join(each.version or "no version" for each in by_name[plain])
        raise ValueError(f"unknown version {version!r} of profile {plain}; choose from {versions}")
    return results[0].with_block(block) if colon else results[0]


def names() -> tuple[str, ...]:
    """The names of all profiles, in the order of producers."""
    return tuple(_by_name())


def _is(version: str, text: str) -> bool:
    return version == text or version.startswith(f"{text}.")


@cache
def _by_name() -> dict[str, list[Profile]]:
    profiles: dict[str, list[Profile]] = {}
    for module in import_all(producers.__name__, producers.__path__):
        own = module.__name__.rpartition(".")[2]
        for each in module.PROFILES:
            if not each.name.startswith(f"{own}."):
                raise ValueError(f"profile {each.name}: names in {own}.py must begin with {own!r}")
            profiles.setdefault(each.name, []).append(each)
    return profiles
