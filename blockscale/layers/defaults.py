# SPDX-License-Identifier: BSD-3-Clause
"""What stays in float unless a recipe's rule names it: one list for models and for directories.

Layers (Linear, Embedding, convolutions) are what recipes are for. Of other parameters of two and
more dimensions most are weights, which are quantized as well; some are not what a small format
should hold, because little is gained or much depends on them. A file has nothing but names and
shapes to tell them by, so both flows go by these, and quantize the same.
"""

import re
from collections.abc import Sequence
from math import prod

_SMALL = 1024  # elements: a table of this size is not worth a scale

# (pattern of the dotted name, why it stays): the first that is found decides
_NAMED = (
    (r"(^|\.)(router|gate|wg|shared_expert_gate|expert_gate)(\.(classifier|wg|layer|gate))?"
     r"(\.(weight|linear\.weight))?$", "router"),
    (r"(^|\.)(A_log|A_logs|dt_bias|dt_projs?_bias|D|Ds|time_(decay|first|faaaa|maa\w*|mix\w*))$",
     "state of a recurrence"),
    (r"(^|[._])(abs_)?(rel_)?(pos|position)\w*(embed\w*|emb|encod\w*|table|bias\w*|h|w|ids)?$",
     "position table"),
    (r"(^|\.)(relative_position\w*|rel_pos\w*|alibi\w*|freqs?\w*|rotary\w*|rope\w*)$",
     "position table"),
    (r"(^|[._])(cls|class|mask|dist|distillation|reg|register|prompt|sep|pad|null)_?(token|embed\w*"
     r"|tokens|emb)s?$", "token"),
    (r"(^|\.)(query|latents?|latent_query|query_tokens?|probe|seed)$", "queries"),
    (r"(^|[._])(norm\w*|ln\w*|layernorm\w*|gamma|beta|scale|scales|temperature|logit_scale|gains?)$",
     "norm or factor"),
    (r"(^|[._])bias(es)?\w*$", "bias"),
    # a buffer in a model, where it is none of its parameters (encodec, mimi)
    (r"(^|\.)codebook\.embed(_avg|_sum)?$", "codebook"),
)  # fmt: skip
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), why) for pattern, why in _NAMED)


def kept_by_default(name: str, shape: Sequence[int]) -> str:
    """Why a parameter that no layer of a known kind owns stays in float; empty if it does not.

    name: its dotted name in the model or directory; shape: as it is there
    """
    if sum(size > 1 for size in shape) < 2:
        return "a vector, such as a norm's weight or a bias"
    if len(shape) > 3:
        return "of four or more dimensions, kept in float by default: name it in a rule"
    for pattern, why in _PATTERNS:
        if pattern.search(name):
            return f"a {why}, kept in float by default: name it in a rule to quantize it"
    if prod(shape) < _SMALL:
        return "a small table, kept in float by default: name it in a rule to quantize it"
    return ""


def kept_layer_by_default(name: str, shape: Sequence[int]) -> str:
    """Why a layer's weight, or what a file calls so, stays in float; empty if it does not.

    Of layers only routers do, which have fewer rows, one for each expert, than inputs: a layer
    called `gate` that is no smaller than others is no router.

    name: of the weight; shape: as it is there
    """
    pattern, why = _PATTERNS[0]
    if len(shape) == 2 and shape[0] < shape[1] and pattern.search(name):
        return f"a {why}, kept in float by default: name it in a rule to quantize it"
    return ""
