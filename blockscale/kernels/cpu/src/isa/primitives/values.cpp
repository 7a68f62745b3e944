// SPDX-License-Identifier: BSD-3-Clause
// The fused loops of wide.h that end in values, for every kind of element.
#include "wide_table.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {

void wide_values_of(const Spec& spec, const WideChunk& c, void* to) {
    auto to_values = [&](auto make) { wide_values(make, c, to); };
    switch (spec.element.family) {
        case Family::binary: return to_values([] { return WideSigns(); });
        case Family::codebook: return with_places(spec, c.finite, to_values);
        case Family::minifloat: return to_values([&] { return WideMinifloats(spec, c.finite); });
        case Family::integer: return with_integers(spec, to_values);
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA

#endif
