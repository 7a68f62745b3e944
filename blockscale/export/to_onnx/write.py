# SPDX-License-Identifier: BSD-3-Clause
"""The file's model from a graph with marks: torch translates the floats, pieces the rest."""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from blockscale.core.torch_private import pytree
from blockscale.core.work import quiet_libraries
from blockscale.export.to_onnx import integer, weight
from blockscale.export.to_onnx.activation import activation
from blockscale.export.to_onnx.scope import LOWEST, File, Scope
from blockscale.export.to_onnx.take import MARK, Activation, MarkedRows, MarkedWeight, Piece
from blockscale.files.whole import written_whole

_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
_WORD = re.compile(r"[A-Za-z_]\w*")
_MATRICES = {1: np.uint32, 10: np.uint16, 16: np.uint16}  # types of floats, and as wide integers
_KINDS = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT"}


def translate(program: ExportedProgram) -> Any:
    """torch's translation of a program (ModelProto), with marks.

    Raises ValueError that names what torch.onnx cannot translate.
    """
    names = _output_names(program)
    try:
        with _quiet():
            result = torch.onnx.export(
                program, dynamo=True, opset_version=LOWEST, output_names=names, verbose=False
            )
    except torch.onnx.OnnxExporterError as error:
        reasons = [str(each).splitlines()[0] for each in _causes(error)]
        raise ValueError(
            "torch.onnx cannot translate the part of the model that is not quantized: "
            + "; ".join(reasons)
        ) from error
    assert result is not None
    model = result.model_proto
    _name_sizes(model.graph)
    _turn_in_the_graph(model.graph)
    return model


def _turn_in_the_graph(graph: Any) -> None:
    """Of a float matrix that is stored as it is and transposed, keep the one that has a name of the
    model, and let a node transpose it: runtimes do that when they load the file.

    So it is with tied weights: a table reads rows, and the last layer its transpose, which torch
    has computed for the file.
    """
    from onnx import helper

    matrices = [t for t in graph.initializer if t.data_type in _MATRICES and len(t.dims) == 2]
    own_matrices = [each for each in matrices if "." in each.name]
    for other in matrices:
        own = next((each for each in own_matrices if _is_transpose(each, other)), None)
        if "." not in other.name and own is not None:
            transpose = helper.make_node("Transpose", [own.name], [other.name], perm=[1, 0])
            graph.node.insert(0, transpose)
            graph.initializer.remove(other)


def _is_transpose(one: Any, other: Any) -> bool:
    from onnx import numpy_helper

    if [*one.dims] != [*other.dims][::-1] or one.data_type != other.data_type:
        return False
    bits = [numpy_helper.to_array(each).view(_MATRICES[one.data_type]) for each in (one, other)]
    return np.array_equal(bits[0], bits[1].T)


def _name_sizes(graph: Any) -> None:
    """Free sizes get the names that programs look for, in place of torch's symbols (`s43`).

    The first size that all inputs share is `batch`, and the second of tokens is `sequence`.
    """
    rows, lengths = set(), set()
    for each in graph.input:
        sizes = [dim.dim_param for dim in each.type.tensor_type.shape.dim]
        rows |= set(sizes[:1])
        lengths |= set(sizes[1:2]) if each.name in _OF_TOKENS else set()
    names = {}
    for symbols, name in ((rows, "batch"), (lengths, "sequence")):
        if len(symbols) == 1 and (symbol := symbols.pop()) and symbol not in names:
            names[symbol] = name
    in_use = {dim.dim_param for each in graph.input for dim in each.type.tensor_type.shape.dim}
    rename_sizes(graph, {old: new for old, new in names.items() if new not in in_use})


def rename_sizes(graph: Any, names: Mapping[str, str]) -> None:
    """Free sizes under other names, {old: new}, also in sums of them."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = _WORD.sub(lambda m: names.get(m[0], m[0]), dim.dim_param)


def _causes(error: BaseException) -> list[BaseException]:
    """What an error came from, the first cause first; those without a message are left out."""
    causes: list[BaseException] = []
    cause: BaseException | None = error.__cause__
    while cause is not None:
        causes.insert(0, cause)
        cause = cause.__cause__
    return [each for each in causes if str(each)] or [error]


def _output_names(program: ExportedProgram) -> list[str] | None:
    """What results are called: `output`, `output_0`, or as in the dict that a model returns."""
    spec = program.call_spec.out_spec
    if spec is None:
        return None
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    in_use = {node.name for node in program.graph.find_nodes(op="placeholder")}
    names = ["_".join(_part(key) for key in path) or "output" for path in paths]
    names = [f"output_{name}" if name.isdigit() else name for name in names]
    return [f"output_{name}" if name in in_use else name for name in names]


def _part(key: Any) -> str:
    """One step of a path into a result: a key, a place, or a name."""
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


@contextmanager
def _quiet() -> Any:
    """Silence torch's exporter, which lists missing packages and its own deprecations."""
    with quiet_libraries(), redirect_stdout(io.StringIO()):
        yield


def fill(model: Any, pieces: Sequence[Piece], opset: int = 0) -> File:
    """Put each piece in the place of its mark, in place; what the file holds beside nodes.

    opset: what was asked for; 0 for the lowest that holds them
    """
    file = File(opset)
    graph = model.graph
    others = [node for node in graph.node if not _reads_codes(node, pieces)]
    file.reserve(name for node in graph.node for name in (node.name, *node.output))
    file.reserve(name for node in others for name in node.input)  # initializers that stay, too
    file.reserve(value.name for value in (*graph.input, *graph.output))
    file.transposed = {
        each.name
        for each in pieces
        if isinstance(each, MarkedWeight)
        and weight.as_products_read_it(each.stored, each.moves, opset)
    }
    _drop_unread(graph, others)
    nodes: list[Any] = []
    scope = Scope(file, "")
    for node in graph.node:
        if (node.domain, node.op_type) != MARK:
            nodes.append(node)
            continue
        piece = pieces[_number(node)]
        scope.within, scope.nodes = piece.name, []
        result = _emit(scope, piece, node.input)
        rename_value(scope.nodes, result, node.output[0])
        nodes += scope.nodes
    keep_sums(nodes)
    _assemble(model, nodes, file)
    return file


def _drop_unread(graph: Any, nodes: list[Any]) -> None:
    """Drop the initializers that only marks of weights read, and what is said of them."""
    read = {name for node in nodes for name in node.input} | {out.name for out in graph.output}
    for i in reversed(range(len(graph.initializer))):  # in place: protobuf copies no 2 GB
        if graph.initializer[i].name not in read:
            del graph.initializer[i]
    names = read | {name for node in graph.node for name in node.output}
    infos = [value for value in graph.value_info if value.name in names]
    del graph.value_info[:]
    graph.value_info.extend(infos)


def _reads_codes(node: Any, pieces: Sequence[Piece]) -> bool:
    """Whether it is the mark of a weight: its input is the codes as torch has them."""
    is_mark = (node.domain, node.op_type) == MARK
    return is_mark and isinstance(pieces[_number(node)], MarkedWeight)


def _number(node: Any) -> int:
    return next(int(a.i) for a in node.attribute if a.name == "number")


def _emit(scope: Scope, piece: Piece, inputs: Sequence[str]) -> str:
    if isinstance(piece, MarkedWeight):
        return weight.weight(scope, piece.name, piece.stored, piece.moves, piece.dtype)
    if isinstance(piece, MarkedRows):
        return weight.rows(scope, piece.name, piece.stored, inputs[0], piece.dtype)
    if isinstance(piece, Activation):
        x = inputs[0]
        if piece.source_dtype != torch.float32:
            x = scope.cast(x, "FLOAT")
        y = activation(scope, piece.name, x, piece.fmt, piece.qparams, piece.sizes)
        return y if piece.dtype == torch.float32 else scope.cast(y, _KINDS[piece.dtype])
    names = iter(inputs)
    args = {
        name: each._replace(name=next(names)) if isinstance(each, integer.TensorInput) else each
        for name, each in piece.args.items()
    }
    return integer.step(scope, piece.op, args)


def rename_value(nodes: list[Any], result: str, new_name: str) -> None:
    """Let a value of nodes have the name of what they take the place of."""
    for node in nodes:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == result:
                    names[i] = new_name


def _assemble(model: Any, nodes: list[Any], file: File) -> None:
    """Nodes, initializers that are read and value types into the model."""
    put_nodes(model.graph, nodes)
    put_tensors(model.graph, file)
    for i, each in enumerate(model.opset_import):
        if each.domain == MARK[0]:
            del model.opset_import[i]
            break


def put_nodes(graph: Any, nodes: Sequence[Any]) -> None:
    """These nodes in the place of a graph's."""
    del graph.node[:]
    graph.node.extend(nodes)


def put_tensors(graph: Any, file: File) -> None:
    """What a file holds beside nodes, into its graph."""
    for tensor in file.tensors.values():
        _add(graph.initializer.add(), tensor)


def _add(target: Any, tensor: Any) -> None:
    """Fill in an initializer by fields: a message of more than 2 GB cannot be copied as one."""
    target.name, target.data_type = tensor.name, tensor.data_type
    target.dims.extend(tensor.dims)
    target.raw_data, target.doc_string = tensor.raw_data, tensor.doc_string


def stamp(model: Any, opset: int) -> None:
    """Say which opset the model is of, and the lowest version of the format."""
    from onnx import helper

    for each in model.opset_import:
        if each.domain == "":
            each.version = opset
    model.ir_version = helper.find_min_ir_version_for(
        [each for each in model.opset_import if each.domain in ("", "ai.onnx")]
    )


# A model on disk: one file, or beside it one with the tensors where it would be too large.
#
# A protobuf message, which an ONNX file is, holds less than 2 GB. Larger models keep their
# tensors in `<name>.data`, as ONNX defines (external data); both files have to be moved together.


LARGEST = 2**31 - 2**24  # bytes of one file: what protobuf takes, less some for names and nodes
_OUTSIDE = 1024  # bytes: smaller tensors stay in the model
_PAGE = 4096  # tensors begin at pages, so that runtimes can map them


def beside(path: Path) -> Path:
    """Where the tensors of a large model lie."""
    return path.with_name(f"{path.name}.data")


def is_large(model: Any) -> bool:
    """Whether a model does not fit into one file."""
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    return size > LARGEST


def save(model: Any, path: Path) -> None:
    """Write a model (ModelProto), whole or not at all. Raises OSError if it cannot be written."""
    if not is_large(model):
        with written_whole(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
        return
    # the data has its name before the model does
    with written_whole(path) as temporary, written_whole(beside(path)) as data:
        with data.open("wb") as file:
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) >= _OUTSIDE:
                    _move_out(tensor, file, beside(path).name)
        temporary.write_bytes(model.SerializeToString())


def _move_out(tensor: Any, file: Any, name: str) -> None:
    """Move a tensor's bytes into a file of tensors; the tensor says where they are."""
    from onnx import TensorProto

    file.write(bytes(-file.tell() % _PAGE))
    place = {"location": name, "offset": file.tell(), "length": len(tensor.raw_data)}
    file.write(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))


# Sums that onnxruntime leaves as they are: `Sum` of two in the place of `Add`.
#
# Add - LayerNormalization becomes SkipLayerNormalization there, and Add - Gelu BiasGelu, whose
# CPU kernels take longer than the two ops (onnxruntime 1.31.1, one thread of an EPYC, MiniLM with
# 32 x 64 tokens: 12 SkipLayerNormalization 81 ms, 12 Sum and 12 LayerNormalization 10 ms). Sum is
# the same number, and no fusion asks for it.


_SLOWER_TOGETHER = ("LayerNormalization", "Gelu")


def keep_sums(nodes: list[Any]) -> int:
    """Let `Sum` take the place of each `Add` (NodeProto) that is read by such an op, in place.

    Returns how many there were.
    """
    makers = {name: node for node in nodes for name in node.output}
    count = 0
    for node in nodes:
        source = makers.get(node.input[0]) if node.op_type in _SLOWER_TOGETHER else None
        if source is not None and source.op_type == "Add" and not source.domain:
            source.op_type = "Sum"
            count += 1
    return count
