/* What a level computes: one table for each format of weights, each element type of keys and values, and one for
 * the rest. */
#ifndef WARMFLEET_KERNELS_H
#define WARMFLEET_KERNELS_H

#include "warmfleet_step.h"

/* A layout by its groups: so many inputs of one row of activations, or of one panel of sixteen outputs, take so many
 * bytes. Inputs are padded to whole groups. */
typedef struct {
    int32_t inputs, bytes;
} wf_layout;

static inline int64_t wf_layout_bytes(wf_layout layout, int64_t inputs) {
    return (inputs + layout.inputs - 1) / layout.inputs * layout.bytes;
}

/* A product of `rows` rows with a matrix. As many rows as a tile has stand together, as the format has them; how many
 * these are follows from `rows` (projection.inc), which has to be that of their packing. */
typedef struct {
    const void *weights;        /* packed panels */
    const void *x;              /* packed activations */
    int32_t rows, inputs, outputs;
    const float *bias;          /* or NULL */
    float *y;                   /* float32 rows of y_stride; added to where `adds` */
    int64_t y_stride;
    int32_t adds;
    void *packed_y;             /* SwiGLU: the product of panel pairs, packed for the next one */
} wf_product;

/* Rows of activations that are packed for a product. */
typedef struct {
    const float *x;
    int64_t stride;
    int32_t rows, inputs;
    const float *norm_weight;   /* RMS norm first; or NULL */
    float norm_epsilon;
    void *packed;
} wf_packing;

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

/* Products with weights of one format. */
typedef struct {
    int32_t tile_rows;          /* the most that a tile holds */
    wf_layout activations;
    /* Panels first to first + count - 1 of a product. */
    void (*product)(const wf_product *product, int first, int count);
    /* Pairs of panels; `first` is a multiple of those whose outputs fill a group of activations. */
    void (*swiglu)(const wf_product *product, int first, int count);
    /* One tile of rows. There are as few as `tile_rows` allows. */
    void (*pack)(const wf_packing *packing, int tile);
    /* One output's weights, as float32. */
    void (*row)(const void *weights, int inputs, int32_t output, float *to);
} wf_projection_kernels;

/* Keys and values of one element type, and attention over them. */
typedef struct {
    int32_t tile_rows;
    int64_t element_bytes;
    /* Store one head's key and value of one token at its slot of a group. */
    void (*store)(const float *key, const float *value, int head_dim, void *keys, void *values, int slot);
    /* Attend over partition `partition`, for the query heads `first_head`.. of one KV head. Row r, head h of
     * the call has state[r * heads_of_call + h] and output[... * head_dim], of this partition alone. A row that
     * sees nothing of it has the maximum -infinity, and `merge` leaves it out. */
    void (*attend)(const wf_attention *a, int first_head, int heads_of_call, int partition, float *scratch,
                   wf_softmax *state, float *output);
} wf_attention_kernels;

/* What is float32 whatever weights, keys and values are. */
typedef struct {
    /* RMS norm of each head where weight is not NULL, then the rotation, in place. */
    void (*rotate)(float *head, int head_dim, const float *weight, float epsilon, const float *cosine,
                   const float *sine);
    void (*merge)(wf_softmax *into, float *output, const wf_softmax *part, const float *part_output,
                  int head_dim);
    /* output / sum. */
    void (*finish)(const wf_softmax *state, const float *output, int head_dim, float *to);
    int (*finite)(const float *row, int count);
    /* The token of one row of logits; -1 if it is not finite. `scratch` has 2 x vocabulary floats. */
    int32_t (*sample)(const float *logits, int vocabulary, const wf_sampling *sampling, float *scratch);
} wf_row_kernels;

/* The kernels of a level; NULL: it has none for this format or element. */
typedef struct {
    const wf_projection_kernels *projection[WF_FORMATS];
    const wf_attention_kernels *attention[WF_ELEMENTS];
    const wf_row_kernels *row;
} wf_level_kernels;

extern const wf_level_kernels wf_levels[WF_LEVELS];
enum { WF_MAX_TILE_ROWS = 16, WF_MAX_HEAD_DIM = 512 };
/* Floats of scratch that `attend` needs: packed queries, scores, packed probabilities, two copies of values. */
int64_t wf_attend_scratch(int head_dim);

#endif
