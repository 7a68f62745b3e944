"""A profile as a recipe spells it: `profile:gptq.int4@0.7.1:group64`, with version and block."""

from blockscale.core.profiles import profile
from blockscale.core.profiles.knobs import Profile

PREFIX = "profile:"


def names_profile(text: object) -> bool:
    """Whether a recipe's text for a weight spells a profile, and not a format."""
    return isinstance(text, str) and text.strip().startswith(PREFIX)


def read_profile(text: str) -> Profile:
    """`profile:NAME`, with `@VERSION` for another than the newest, and `:BLOCK` for another block.

    Raises ValueError for names, versions and blocks that there are not, with those that there are.
    """
    plain, colon, block = text.strip().removeprefix(PREFIX).partition(":")
    name, at, version = plain.partition("@")
    if at and not version:
        raise ValueError(f"{text.strip()!r} has no version after '@': leave it out, or name one")
    return profile(f"{name}{colon}{block}", version if at else None)


def spelled(given: Profile) -> str:
    """What `read_profile` reads back, with the version.

    Raises ValueError for a profile that is not found by its name, which no text can stand for.
    """
    plain, colon, block = str(given).partition(":")
    text = f"{PREFIX}{plain}{f'@{given.version}' if given.version else ''}{colon}{block}"
    try:
        known = read_profile(text)
    except ValueError:
        known = None
    if known != given:
        raise ValueError(
            f"profile {given} is none of those that bs.profile finds, so a recipe cannot name it: "
            f"make codes by bs.quantize and pass them as `weights` of bs.quantize_"
        )
    return text
