// SPDX-License-Identifier: BSD-3-Clause
// The fused loops of wide.h that end in codes, for every kind of element.
#include "wide_table.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {

void wide_codes_of(const Spec& spec, const WideChunk& c, const CodeTable* table, bool of_words,
                   uint8_t* codes) {
    auto to_bytes = [&](auto make) { wide_codes<1>(make, c, codes); };
    switch (spec.element.family) {
        case Family::binary: return to_bytes([] { return WideSigns(); });
        case Family::codebook: return with_places(spec, c.finite, to_bytes);
        case Family::minifloat:
            if (table && c.finite) return to_bytes([&] { return WideTable(spec, *table, of_words); });
            return to_bytes([&] { return WideMinifloats(spec, c.finite); });
        case Family::integer:
            if (spec.code_bytes() == 1) return with_integers(spec, to_bytes);
            return with_integers(spec, [&](auto make) { wide_codes<2>(make, c, codes); });
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA

#endif
