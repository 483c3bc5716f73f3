/* What a level computes for one kind of weights; step.c calls through this table. */
#ifndef WARMFLEET_KERNELS_H
#define WARMFLEET_KERNELS_H

#include "warmfleet_step.h"

/* Activations of up to `tile_rows` rows stand together, pair by pair of inputs: [inputs / 2][rows][2]. A
 * product of `rows` rows has tiles of `tile_rows` and one of the rest. */
typedef struct {
    const void *weights;        /* packed panels */
    const void *x;              /* packed activations, padded to whole pairs */
    int32_t rows, inputs, outputs;
    const float *bias;          /* or NULL */
    float *y;                   /* float32 rows of y_stride; added to where `adds` */
    int64_t y_stride;
    int32_t adds;
    void *packed_y;             /* SwiGLU: the product of panel pairs, packed for the next one */
} wf_product;

/* Attention of queries at consecutive positions of one sequence. */
typedef struct {
    const float *queries;       /* rows of query_stride: the rotated heads of each token */
    int64_t query_stride;
    int32_t first_position, rows;
    int32_t head_dim, window_tokens;
    float scale;
    const uint8_t *keys;        /* of this layer and KV head, in block 0; values value_offset bytes on */
    int64_t block_stride, value_offset;
    const int32_t *block_ids;
    int32_t block_size_tokens, chunk_end;   /* positions from chunk_end on are not written yet */
} wf_attention;

/* A softmax in parts: the largest score, the sum and the weighted values relative to it. */
typedef struct {
    float maximum, sum;
} wf_softmax;

typedef struct {
    int32_t tile_rows;
    int64_t activation_bytes;   /* of one packed activation */
    int64_t weight_bytes;
    /* Panels first to first + count - 1 of a product; for SwiGLU pairs of panels. */
    void (*product)(const wf_product *product, int first, int count);
    void (*swiglu)(const wf_product *product, int first, int count);
    /* Pack rows `first` to `first` + `count` - 1 of one tile that has `tile` rows. */
    void (*pack)(const float *x, int64_t stride, int count, int inputs, void *packed, int tile, int first);
    /* RMS norm of `count` rows, packed as the rows `first`.. of a tile of `tile` rows. */
    void (*norm)(const float *x, int64_t stride, int count, int inputs, const float *weight, float epsilon,
                 void *packed, int tile, int first);
    /* RMS norm of each head where weight is not NULL, then the rotation, in place. */
    void (*rotate)(float *head, int head_dim, const float *weight, float epsilon, const float *cosine,
                   const float *sine);
    /* Store one head's key and value of one token at its slot of a group. */
    void (*store)(const float *key, const float *value, int head_dim, void *keys, void *values, int slot);
    /* Attend over partition `partition`, for the query heads `first_head`.. of one KV head. Row r, head h of
     * the call has state[r * heads_of_call + h] and output[... * head_dim], of this partition alone. A row that
     * sees nothing of it has the maximum -infinity, and `merge` leaves it out. */
    void (*attend)(const wf_attention *a, int first_head, int heads_of_call, int partition, float *scratch,
                   wf_softmax *state, float *output);
    void (*merge)(wf_softmax *into, float *output, const wf_softmax *part, const float *part_output,
                  int head_dim);
    /* output / sum, packed as inputs first_input.. of row `row` of a tile. */
    void (*finish)(const wf_softmax *state, const float *output, int head_dim, void *packed, int tile, int row,
                   int first_input);
    int (*finite)(const float *row, int count);
    /* The token of one row of logits; -1 if it is not finite. `scratch` has 2 x vocabulary floats. */
    int32_t (*sample)(const float *logits, int vocabulary, const wf_sampling *sampling, float *scratch);
} wf_kernels;

extern const wf_kernels wf_avx2_bf16, wf_avx2_f32, wf_avx512_bf16, wf_avx512_f32, wf_avx512_bf16_bf16;

enum { WF_MAX_TILE_ROWS = 12, WF_MAX_HEAD_DIM = 512 };
/* Floats of scratch that `attend` needs: packed queries, scores, packed probabilities, two copies of values. */
int64_t wf_attend_scratch(int head_dim);

#endif
