#include "grid.h"

#include <algorithm>
#include <stdexcept>

namespace blockscale {

Grid make_grid(const int64_t* shape, const int64_t* sizes, int rank) {
    int64_t n[3] = {1, 1, 1}, b[3] = {1, 1, 1};  // innermost first
    int used = 0;
    for (int i = rank - 1; i >= 0; --i) {
        int64_t size = shape[i], block = sizes[i] == 0 ? size : std::min(sizes[i], size);
        if (size == 1) continue;
        bool whole = block == size, was_whole = used > 0 && b[used - 1] == n[used - 1];
        bool alike = used > 0 && ((whole && was_whole) || (block == 1 && b[used - 1] == 1));
        if (alike) {
            b[used - 1] = whole ? b[used - 1] * size : 1;
            n[used - 1] *= size;
            continue;
        }
        if (used == 3) throw std::invalid_argument("blocks in more than three dimensions");
        n[used] = size;
        b[used++] = block;
    }
    return {n[2], n[1], n[0], b[2], b[1], b[0]};
}

}  // namespace blockscale
