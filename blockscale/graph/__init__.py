"""Programs between layers: what stands for a whole model, as a graph."""

from blockscale.graph.adopt import adopt as adopt
from blockscale.graph.adopt.quantize_fx import from_quantize_fx as from_quantize_fx
from blockscale.graph.convert import convert as convert
from blockscale.graph.draw import draw as draw
from blockscale.graph.fuse import fuse as fuse
from blockscale.graph.integer.convert import IntegerModel as IntegerModel
from blockscale.graph.integer.convert import to_integer as to_integer
from blockscale.graph.integer.convert import with_integer_bias as with_integer_bias
from blockscale.graph.integer.layers import NotIntegerError as NotIntegerError
from blockscale.graph.ledger import ledger as ledger
from blockscale.graph.lower import compiled as compiled
from blockscale.graph.lower import lower as lower
from blockscale.graph.lower import package as package
from blockscale.graph.lower import targets as targets
from blockscale.graph.lower import ways as ways
from blockscale.graph.lower.integers.audit import IntegerAudit as IntegerAudit
from blockscale.graph.lower.integers.audit import audit_integer as audit_integer
from blockscale.graph.lower.integers.cost import Cost as Cost
from blockscale.graph.lower.integers.cost import cost as cost
from blockscale.graph.lower.integers.recipe import integer_recipe as integer_recipe
from blockscale.graph.prepare import prepare as prepare
from blockscale.graph.pt2e import pt2e_quantizer as pt2e_quantizer
from blockscale.graph.qparams import QuantParams as QuantParams
