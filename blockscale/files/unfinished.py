"""Models that are on their way to a quantized one, and are not one yet: a file would not say so."""

from torch import nn
from torch.fx import GraphModule

from blockscale.graph.prepare import Prepared
from blockscale.graph.state import State
from blockscale.qat.layers import QATLayer

_OBSERVED = "_observed"  # where compat.torch_ao's prepare keeps what its convert needs


def refuse_unfinished(model: nn.Module) -> None:
    """Raise ValueError for a model that is prepared, for training or calibration, not converted;
    and for a graph that is converted, which no float model stands for."""
    for name, module in model.named_modules():
        where = f"{name} of this model" if name else "this model"
        if isinstance(module, Prepared):
            raise ValueError(
                f"{where} is a graph that is prepared and not converted: bs.graph.convert it first"
            )
        known = module.meta.get("blockscale") if isinstance(module, GraphModule) else None
        if isinstance(known, State) and known.stage != "imported":
            raise ValueError(
                f"{where} is a {known.stage} graph, whose codes mean something in its program "
                f"only: torch.export.save(torch.export.export(graph, example), path)"
            )
        if isinstance(module, QATLayer):
            raise ValueError(
                f"{where} is prepared for training and not converted: bs.convert(model) first, or "
                f"a copy of it (copy.deepcopy). To train on later, keep a checkpoint: "
                f"torch.save(model.state_dict(), path)"
            )
        if _OBSERVED in vars(module):
            raise ValueError(
                f"{where} is prepared for calibration and not converted: "
                f"blockscale.compat.torch_ao.convert it first"
            )
