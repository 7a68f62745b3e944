// SPDX-License-Identifier: BSD-3-Clause
// Choices of which only speed depends: how much of the caches a piece may take, from how many rows on another
// way pays, from how much work on threads do. They are measured once for a kind of machine
// (blockscale/kernels/cpu/tuned.py) and set when the library is loaded. What stands here is what a processor
// gets that nobody has measured.
#pragma once

#include <cstdint>

namespace blockscale {

// X(name, without a measurement, least, most). Kernels must be right for all between least and most, at any
// time: each reads a choice once a call. Those that end in _float choose among ways that sum floats in
// another order, which the op's definition allows; all others change no bit.
#define BLOCKSCALE_EACH_CHOICE(X)                                                                        \
    X(unit_elements, 16 << 10, 1 << 10, 1 << 20)      /* of one unit of work of a primitive */           \
    X(threaded_elements, 16 << 10, 0, 1 << 30)        /* from which on further threads take part */      \
    X(stream_bytes, 32 << 20, 0, int64_t{1} << 40)    /* from which on outputs go around the caches */   \
    X(weight_bytes, 640 << 10, 0, 1 << 30)            /* of a weight of integers that stays in L2 */     \
    X(rows_bytes, 384 << 10, 0, 1 << 30)              /* of x that stay there while panels pass by */    \
    X(matrix_rows_bytes, 1 << 20, 0, 1 << 30)         /* the same where a matrix unit multiplies */      \
    X(matrix_codes, 4096, 16, 1 << 20)                /* along k of a panel that stays in L1 then */     \
    X(matrix_panels, 8, 1, 1 << 10)                   /* of 32 outputs whose float sums stay in L2 */    \
    X(vector_rows, 8, 0, 1 << 30)                     /* of x that are left to the vectors */            \
    X(vector_rows_of_blocks, 95, 0, 1 << 30)          /* the same where both sides have blocks */        \
    X(panel_rows, 512, 32, 1 << 14)                   /* of float x beside a decoded panel */            \
    X(few_of_nibbles_float, 16, 0, 64)                /* rows of x that meet codes in registers */       \
    X(few_of_books_float, 8, 0, 64)                   /* the same of elements in a table */              \
    X(few_of_bytes_float, 12, 0, 64)                  /* the same of all others */                       \
    X(bf16_rows_float, 16, 1, 1 << 30)                /* rows from which a matrix unit pays: bf16 */     \
    X(bf16_rows_of_parts_float, 32, 1, 1 << 30)       /* the same, the weight in several parts */        \
    X(wide_rows_float, 64, 1, 1 << 30)                /* the same for other x */                         \
    X(wide_rows_of_parts_float, 128, 1, 1 << 30)      /* and with a weight in several parts */

enum class Choice : int {
#define BLOCKSCALE_NAME(name, usual, least, most) name,
    BLOCKSCALE_EACH_CHOICE(BLOCKSCALE_NAME)
#undef BLOCKSCALE_NAME
};

#define BLOCKSCALE_ONE(name, usual, least, most) +1
constexpr int kChoices = 0 BLOCKSCALE_EACH_CHOICE(BLOCKSCALE_ONE);
#undef BLOCKSCALE_ONE

extern int64_t choices[kChoices];  // read and written whole, in no order

inline int64_t chosen(Choice what) {
    return __atomic_load_n(&choices[static_cast<int>(what)], __ATOMIC_RELAXED);
}

}  // namespace blockscale
