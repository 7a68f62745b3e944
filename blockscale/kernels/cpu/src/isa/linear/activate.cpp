// SPDX-License-Identifier: BSD-3-Clause
// Activations of an array, for the results of linear layers that are not finished tile by tile.
#include "../../linear.h"
#include "../../memory.h"
#include "../simd/environment.h"
#include "activations.h"

namespace blockscale::BLOCKSCALE_ISA {

void activate(Activation activation, float* y, int64_t n, int threads) {
    constexpr int64_t kPart = 4096;
#pragma omp parallel for num_threads(startable(threads)) if (n > 8 * kPart)
    for (int64_t first = 0; first < n; first += kPart) {
        FullPrecision guard;
        int64_t count = smaller(kPart, n - first), whole = count / kFloats * kFloats;
        alignas(64) float last[kFloats] = {};
        activate_whole(activation, y + first, whole);
        memcpy(last, y + first + whole, (count - whole) * 4);
        activate_whole(activation, last, kFloats);
        memcpy(y + first + whole, last, (count - whole) * 4);
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA
