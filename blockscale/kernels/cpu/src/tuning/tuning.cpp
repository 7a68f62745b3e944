// SPDX-License-Identifier: BSD-3-Clause
#include "tuning.h"

namespace blockscale {

int64_t choices[kChoices] = {
#define BLOCKSCALE_USUAL(name, usual, least, most) usual,
    BLOCKSCALE_EACH_CHOICE(BLOCKSCALE_USUAL)
#undef BLOCKSCALE_USUAL
};

}  // namespace blockscale
