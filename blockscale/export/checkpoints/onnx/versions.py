"""What an ONNX file uses, against the version that it says it is of."""

from blockscale.export.checkpoints.onnx.tensors import Model

# {type of tensors: the opset with which it came} (onnx, docs/Versioning.md and Changelog.md)
_SINCE = {
    "float8e4m3fn": 19, "float8e5m2": 19, "float8e4m3fnuz": 19, "float8e5m2fnuz": 19, "int4": 21,
    "uint4": 21, "float4e2m1": 23, "float8e8m0": 24, "int2": 25, "uint2": 25,
}  # fmt: skip
_BLOCKS = 21  # DequantizeLinear's block_size


def too_new(model: Model) -> list[str]:
    """What standard operators read that their opset does not have yet: the file errs about it."""
    found: dict[str, int] = {}
    for node in model.nodes:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op == "DequantizeLinear" and node.attributes.get("block_size"):
            found["blocks of DequantizeLinear"] = _BLOCKS
        for name in node.inputs:
            if (tensor := model.tensors.get(name)) is not None and tensor.type in _SINCE:
                found[tensor.type] = _SINCE[tensor.type]
    opset = model.opset
    return [
        f"it says that it is of opset {opset}, and has {what}, which came with {since}"
        for what, since in found.items()
        if since > opset
    ]
