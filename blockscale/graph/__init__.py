# SPDX-License-Identifier: BSD-3-Clause
"""Programs between layers: what stands for a whole model, as a graph."""

from blockscale.graph.adoption import adopt as adopt
from blockscale.graph.adoption.quantize_fx import from_quantize_fx as from_quantize_fx
from blockscale.graph.conversion import convert as convert
from blockscale.graph.drawing import draw as draw
from blockscale.graph.fusion import fuse as fuse
from blockscale.graph.integer_model import IntegerModel as IntegerModel
from blockscale.graph.integer_model import to_integer as to_integer
from blockscale.graph.integer_model import with_integer_bias as with_integer_bias
from blockscale.graph.ledgers import ledger as ledger
from blockscale.graph.lowering import compiled as compiled
from blockscale.graph.lowering import lower as lower
from blockscale.graph.lowering import package as package
from blockscale.graph.lowering import targets as targets
from blockscale.graph.lowering import ways as ways
from blockscale.graph.lowering.integers.audit import IntegerAudit as IntegerAudit
from blockscale.graph.lowering.integers.audit import audit_integer as audit_integer
from blockscale.graph.lowering.integers.cost import Cost as Cost
from blockscale.graph.lowering.integers.cost import cost as cost
from blockscale.graph.lowering.integers.fixed import NotIntegerError as NotIntegerError
from blockscale.graph.lowering.integers.recipe import integer_recipe as integer_recipe
from blockscale.graph.preparation import prepare as prepare
from blockscale.graph.pt2e import pt2e_quantizer as pt2e_quantizer
from blockscale.graph.qparams import QuantParams as QuantParams
