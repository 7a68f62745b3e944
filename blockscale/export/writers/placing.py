"""Which quantized tensors have a place in what a producer's readers build, told by their names.

Readers build the model with layers of their own in the place of linear ones, and ask the file for
the parts of those. A quantized tensor that belongs to no such layer is written in vain: they draw
that parameter at random, often without an error.
"""

import re

from blockscale.export.writers.writer import Writer

# The last name of a module that is a table: nn.Embedding and its kin in models of transformers
_TABLE = re.compile(
    r"(?!patch)((\w*_)?(embeddings?|embed|emb)|embed_(tokens|positions|in)|token_embd"
    r"|tok_embeddings|wte|wpe|shared|relative_attention_bias)"
)


def no_place(writer: Writer, name: str) -> str | None:
    """Why readers of a producer ask for no quantized tensor of this name; None where they do."""
    if not writer.parameters and (reason := no_layer(name)):
        return reason
    if not writer.embeddings and is_table(name):
        return "its readers have no quantized tables of embeddings"
    return None


def no_layer(name: str) -> str | None:
    """Why a tensor of this name is not the weight of a layer; None where it is one."""
    if name.endswith(".weight"):
        return None
    return (
        "it is a parameter by itself, and its readers take the weights of layers alone, which are "
        "called <layer>.weight"
    )


def is_table(name: str) -> bool:
    """Whether it is the table of an embedding by its name: `embed_tokens.weight`, `wte.weight`."""
    owner = name.removesuffix(".weight").rpartition(".")[2]
    return _TABLE.fullmatch(owner) is not None
