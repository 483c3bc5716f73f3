/* Panels of eight-bit weights: [outputs / 16][inputs / 64] of {scales float16 [2][16], int8 [2][16 pairs][16 outputs][2]},
 * which is 17 cache lines. weights.c writes them, int8.inc multiplies with them. */
#ifndef WARMFLEET_INT8_LAYOUT_H
#define WARMFLEET_INT8_LAYOUT_H

#include "warmfleet_step.h"

enum {
    INT8_BLOCK = 32,                                    /* inputs that share a scale */
    INT8_GROUP = 2 * INT8_BLOCK,                        /* inputs whose scales and values stand together */
    INT8_SCALES_BYTES = 2 * WF_LANES * 2,
    INT8_PAIR_BYTES = 2 * WF_LANES,                     /* two inputs of sixteen outputs */
    INT8_BLOCK_BYTES = INT8_BLOCK / 2 * INT8_PAIR_BYTES,
    INT8_GROUP_BYTES = INT8_SCALES_BYTES + 2 * INT8_BLOCK_BYTES,
};

/* In the group of input k, from its beginning on: the scale of its block, and its value, of output `lane`. */
static inline int64_t wf_int8_scale_at(int64_t k, int64_t lane) {
    return (k % INT8_GROUP / INT8_BLOCK * WF_LANES + lane) * 2;
}
static inline int64_t wf_int8_value_at(int64_t k, int64_t lane) {
    return INT8_SCALES_BYTES + k % INT8_GROUP / 2 * INT8_PAIR_BYTES + lane * 2 + k % 2;
}

#endif
