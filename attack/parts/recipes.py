# SPDX-License-Identifier: BSD-3-Clause
"""Recipes from a stranger: values of every type, and patterns made to be slow."""

import json
import random
from typing import Any

from attack.part import Case, Found, Part, is_told
from attack.parts.spellings import spelling
from blockscale.core.recipe import Recipe

_PATTERNS = ("*", "a.b", "re:(a+)+$", "re:(a|a)*b", "re:(.*)*x", "re:[", "[!", "re:", "re:\\d{1,99999}", "",
             "**" * 30, "re:(?P<a>x)(?P=a)", "re:(?i)A", "\0", "[red]", "\x1b[2J", "re:(x*)*(y*)*z", "a" * 3000,
             "re:" + "(" * 200 + ")" * 200, "re:a{65536}", "lm_head.bias")  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    "",
    "int8",
    [],
    {},
    [[]],
    {"a": None},
    "int32:sums",
)
_NAMES = ("layers.0.proj", "a" * 28, "a" * 40 + "!", "x" * 30 + "y" * 30, "lm_head", "")


def value(rng: random.Random, depth: int = 0) -> Any:
    """What could stand in JSON."""
    kind = rng.randrange(8)
    if kind < 3:
        return spelling(rng)[:500] if kind else rng.choice(("int8", "mxfp4", "nvfp4"))
    if kind < 6 or depth > 3:
        return rng.choice(_VALUES)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    keys = (*_PATTERNS, "weight", "input", "output", "bias", "layers")
    return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def recipe(rng: random.Random) -> dict[str, Any]:
    """Mostly of the right form."""
    fields = ("weight", "input", "output", "rules", "skip", "bias", "x")
    made: dict[str, Any] = {name: value(rng) for name in rng.sample(fields, rng.randrange(4))}
    if rng.random() < 0.7:
        patterns = rng.choices(_PATTERNS, k=rng.randrange(4))
        made["rules"] = {
            p: rng.choice((None, "int8", {"weight": "mxfp4"}, value(rng))) for p in patterns
        }
    if rng.random() < 0.4:
        made["skip"] = rng.choices(_PATTERNS, k=rng.randrange(3))
    return made


def case(case: Case) -> None:
    rng = case.random()
    data = recipe(rng)
    try:
        made = Recipe.from_json(json.dumps(data))
        schemes = [made.decide(name) for name in _NAMES]
        again = Recipe.from_json(made.to_json())
    except ValueError as error:
        if len(str(error)) > 5000:
            raise Found("an error of 5,000 characters and more", str(error)[:300]) from None
        return
    except Exception as error:
        if isinstance(error, TypeError) and is_told(error):
            return
        error.add_note(f"recipe: {str(data)[:500]}")
        raise
    if [again.decide(name) for name in _NAMES] != schemes:
        raise Found("a recipe is not what its JSON says", f"{data}")


PARTS = (Part("recipes", "recipes", 1_000_000, case, seconds=10, memory=2 << 30),)
