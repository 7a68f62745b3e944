# SPDX-License-Identifier: BSD-3-Clause
"""convert: turn a model that was trained with fake quantization into the quantized model."""

from dataclasses import replace

from torch import nn

from blockscale.core.ledger import Entry, Ledger
from blockscale.layers.apply import swap
from blockscale.layers.guards import check_model, ordinary_tensors, replacing
from blockscale.layers.layer import QLayer, notes_on_bias
from blockscale.layers.model import (
    announce,
    sent_by_no_forward,
    stands_for_norm,
    tell_names,
    without_wrappers,
)
from blockscale.layers.store import QWeight
from blockscale.qat.layers import QATLayer
from blockscale.qat.layers.conv import QATConv
from blockscale.qat.prepare import ledger


def convert(model: nn.Module) -> nn.Module:
    """Put the quantized layers in place of those in training; returns the model.

    Its outputs are those of the prepared model in evaluation without gradients, bit for bit. Batch
    norms that were folded become nn.Identity. `bs.save` and everything else works with the result;
    `bs.qat.ledger(model)` says what each layer holds. One warning names biases that saturate,
    and learned scales that never began or that began anew.

    Raises ValueError, before anything is changed, if nothing is prepared, if a static scale has
    seen no data, or for a model that is sharded or wrapped.
    """
    check_model(model, "bs.convert")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("found a DistributedDataParallel: convert the model inside, ddp.module")
    with without_wrappers(model) as plain, ordinary_tensors(), replacing(plain, "bs.convert"):
        entries = _convert(plain)
    Ledger(entries).warn()
    return model


def _convert(model: nn.Module) -> list[Entry]:
    """Convert the model; returns entries with the notes that the warning is to list."""
    names: dict[QATLayer, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QATLayer):
            names.setdefault(module, []).append(name)
    _check(model, names)
    weights: dict[int, QWeight] = {}
    new_notes: list[Entry] = []
    entries = {entry.name: entry for entry in ledger(model)}
    for layer, places in names.items():
        owns = id(layer.weight) not in weights
        if owns:
            layer.weight_quantizer.settle(layer.float_weight())
            weights[id(layer.weight)] = layer.quantized_weight()
        weight = weights[id(layer.weight)]
        quantized, notes = _quantized(layer, weight)
        quantized.take_place_of(layer)
        swap(model, dict.fromkeys(places, quantized))
        entry = entries[places[0]]
        notes += tuple(_learned_notes(layer))
        entries[places[0]] = replace(
            entry,
            reason=entry.reason.replace("prepared for training", "trained"),
            bytes_after=quantized.bias_bytes + (weight.nbytes if owns else 0),
            notes=(*entry.notes, *notes),
        )
        new_notes += [replace(entry, notes=notes)]
        if isinstance(layer, QATConv) and layer.norm is not None:
            _drop(model, layer.norm, entries, places[0], quantized)
    model._qat_ledger = replace(ledger(model), entries=list(entries.values()))  # type: ignore[assignment]
    tell_names(model)
    sent_by_no_forward(model)
    announce(model)
    return new_notes


def _quantized(layer: QATLayer, weight: QWeight) -> tuple[QLayer, tuple[str, ...]]:
    """The quantized layer, with parameters where it has floats, and what to know of its bias."""
    quantizer = layer.bias_quantizer
    info = (
        [] if quantizer is None else notes_on_bias(layer.with_float_bias(weight), quantizer.format)
    )
    quantized = layer.as_quantized(weight)
    bias = quantized._parameters.get("bias")
    if bias is not None and not isinstance(bias, nn.Parameter):
        quantized.set_float_bias(nn.Parameter(bias))
    return quantized, tuple(info)


def _learned_notes(layer: QATLayer) -> list[str]:
    """What to know of the layer's learned scales."""
    quantizers = layer.quantizers()._asdict().items()
    learned = [(part, q.learned) for part, q in quantizers if q is not None and q.learned]
    padding = {"weight": layer.padding_row}
    return [note for part, scale in learned for note in scale.notes(part, padding.get(part))]


def _drop(
    model: nn.Module, norm: nn.Module, entries: dict[str, Entry], conv: str, layer: QLayer
) -> None:
    """Remove a batch norm that is folded into `conv`, now `layer`."""
    places = [n for n, m in model.named_modules(remove_duplicate=False) if m is norm]
    for name, _ in norm.named_parameters():
        entry = entries[f"{places[0]}.{name}"]
        text = f"folded into {conv}"
        entries[entry.name] = replace(entry, reason=text, bytes_after=0)
    identity = nn.Identity().train(norm.training)
    swap(model, dict.fromkeys(places, identity))
    stands_for_norm(identity, layer)


def _check(model: nn.Module, names: dict[QATLayer, list[str]]) -> None:
    if not names:
        raise ValueError(
            "nothing in this model is prepared for training: call bs.prepare_qat(model, "
            "recipe) first"
        )
    values = {entry.name for entry in ledger(model)}
    if unknown := [place for places in names.values() for place in places if place not in values]:
        raise ValueError(
            f"{unknown[0]} is not in the model's ledger: convert the same model that "
            "bs.prepare_qat prepared"
        )
    if sharded := [n[0] for layer, n in names.items() if hasattr(layer.weight, "full_tensor")]:
        raise ValueError(
            f"{sharded[0]} is sharded: gather the state (torch.distributed.checkpoint.state_dict."
            f"get_model_state_dict with full_state_dict=True), load it into a prepared model that "
            f"is not sharded, and convert that"
        )
    for layer, (name, *_) in names.items():
        for quantizer in (layer.input_quantizer, layer.output_quantizer):
            if quantizer is not None and not quantizer.ready:
                try:
                    quantizer.check()
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
