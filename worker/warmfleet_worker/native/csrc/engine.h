/* What an engine holds, and the parts of a step that have files of their own. */
#ifndef WARMFLEET_ENGINE_H
#define WARMFLEET_ENGINE_H

#include "kernels.h"
#include "pool.h"

/* Scratch of one thread. */
typedef struct {
    float *scratch;             /* of attend */
    float *scaled;              /* of sample */
    wf_softmax state[2][WF_MAX_TILE_ROWS];
    float *output[2];
} wf_worker;

/* Consecutive rows of one chunk that attend together, for some query heads of one KV head. */
typedef struct {
    int32_t row, rows, chunk, kv_head, first_head, heads;
    int32_t partition;          /* the one to compute, or -1: all, and finish */
    int32_t part;               /* where its state and output go */
} wf_unit;

struct wf_engine {
    wf_model model;
    wf_layer *layers;
    const wf_projection_kernels *projection;
    const wf_attention_kernels *attention;
    const wf_row_kernels *row;
    wf_pool *pool;
    wf_worker *workers;
    int64_t query_size, qkv_size;
    float *hidden, *qkv, *attended;         /* of the rows of a pass */
    void *x, *inner;                        /* activations, packed */
    int64_t x_bytes, inner_bytes;
    wf_unit *units;
    int32_t unit_count, unit_room;
    wf_softmax *part_states;
    float *part_outputs;
    int32_t part_room;
};

/* Rows row0 to row0 + rows - 1 of a step, computed together. */
typedef struct {
    wf_engine *engine;
    const wf_step_arguments *step;
    int32_t row0, rows;
} wf_pass;

/* Query heads of one KV head. */
static inline int wf_query_heads(const wf_model *m) { return m->heads / m->kv_heads; }

/* Where a KV head's keys of a layer are in block 0. */
static inline uint8_t *wf_keys_at(const wf_model *m, int layer, int kv_head) {
    return (uint8_t *)m->arena + layer * m->layer_stride_bytes + kv_head * m->head_stride_bytes;
}

/* Deal the rows of a pass to units of attention. */
void wf_plan_attention(const wf_pass *pass);
/* Attend with the queries in engine->qkv over keys and values of a layer; heads go to engine->attended. */
void wf_attend(const wf_pass *pass, int layer);

#endif
