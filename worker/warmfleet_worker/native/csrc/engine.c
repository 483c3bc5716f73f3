/* Makes and ends an engine: memory, threads, and the kernels of its level. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_PARTS = 1 << 16,       /* of queries whose context is dealt by partition: 32 MiB of heads of 128 */
    ROW_FLOATS = WF_MAX_ROWS * (int)sizeof(float),
};

/* As `attend` divides it. A row of queries, and of values, may be padded to sixteen dimensions. */
int64_t wf_attend_scratch(int head_dim) {
    return WF_MAX_TILE_ROWS * (head_dim + WF_LANES) + 2 * WF_MAX_TILE_ROWS * WF_PARTITION +
           2 * WF_LANES * (head_dim + WF_LANES);
}

int wf_engine_new(const wf_model *model, wf_engine **engine) {
    const wf_model *m = model;
    if (m->hidden < 1 || m->intermediate < 1 || m->layers < 1 || m->heads < 1 || m->kv_heads < 1 ||
        m->heads % m->kv_heads || m->head_dim < 2 || m->head_dim % 2 || m->head_dim > WF_MAX_HEAD_DIM ||
        m->vocabulary < 1 || m->threads < 1 || m->block_size_tokens < WF_LANES ||
        m->block_size_tokens % WF_LANES || m->total_blocks < 1 || m->positions < 1 || m->window_tokens < 0 ||
        m->level < 0 || m->level >= WF_LEVELS || m->weight_format < 0 || m->weight_format >= WF_FORMATS ||
        m->kv_element < 0 || m->kv_element >= WF_ELEMENTS)
        return WF_BAD_ARGUMENT;
    const wf_level_kernels *kernels = &wf_levels[m->level];
    if (!wf_level_computes(m->level, m->weight_format, m->kv_element)) return WF_NO_LEVEL;
    if (!wf_request_permission(m->level)) return WF_NO_PERMISSION;
    wf_engine *e = calloc(1, sizeof *e);
    if (!e) return WF_NO_MEMORY;
    e->model = *model;
    e->projection = kernels->projection[m->weight_format];
    e->attention = kernels->attention[m->kv_element];
    e->row = kernels->row;
    e->query_size = (int64_t)m->heads * m->head_dim;
    e->qkv_size = e->query_size + 2 * (int64_t)m->kv_heads * m->head_dim;
    e->layers = malloc(sizeof(wf_layer) * (size_t)m->layers);
    e->workers = calloc((size_t)m->threads, sizeof *e->workers);
    int64_t unit_room = WF_MAX_ROWS * (int64_t)m->heads + MOST_PARTS;
    int64_t context_parts = m->positions / WF_PARTITION + 1, few_units = 4 * (int64_t)m->threads;
    int64_t part_room = few_units * context_parts * wf_query_heads(m);
    if (part_room > MOST_PARTS) part_room = MOST_PARTS;
    if (unit_room > INT32_MAX) {
        wf_engine_free(e);
        return WF_NO_MEMORY;
    }
    e->unit_room = (int32_t)unit_room;
    e->part_room = (int32_t)part_room;
    int64_t widest = m->hidden > e->query_size ? m->hidden : e->query_size;
    e->x_bytes = WF_MAX_ROWS * wf_layout_bytes(e->projection->activations, widest);
    e->inner_bytes = WF_MAX_ROWS * wf_layout_bytes(e->projection->activations, m->intermediate);
    e->hidden = wf_map(ROW_FLOATS * (int64_t)m->hidden);
    e->qkv = wf_map(ROW_FLOATS * e->qkv_size);
    e->attended = wf_map(ROW_FLOATS * e->query_size);
    e->x = wf_map(e->x_bytes);
    e->inner = wf_map(e->inner_bytes);
    e->units = malloc(sizeof(wf_unit) * (size_t)e->unit_room);
    e->part_states = malloc(sizeof(wf_softmax) * (size_t)e->part_room);
    e->part_outputs = malloc(sizeof(float) * (size_t)e->part_room * (size_t)m->head_dim);
    int ok = e->layers && e->workers && e->hidden && e->qkv && e->x && e->attended && e->inner && e->units &&
             e->part_states && e->part_outputs;
    for (int i = 0; ok && i < m->threads; i++) {
        wf_worker *w = &e->workers[i];
        size_t output = WF_MAX_TILE_ROWS * (size_t)m->head_dim;
        w->scratch = aligned_alloc(64, (size_t)((wf_attend_scratch(m->head_dim) * 4 + 63) / 64 * 64));
        w->output[0] = malloc(2 * output * sizeof(float));
        w->output[1] = w->output[0] ? w->output[0] + output : NULL;
        w->scaled = wf_map(2 * (int64_t)sizeof(float) * m->vocabulary);
        ok = w->scratch && w->output[0] && w->scaled;
    }
    if (ok) memcpy(e->layers, m->layer, sizeof(wf_layer) * (size_t)m->layers);
    int status = ok ? WF_OK : WF_NO_MEMORY;
    if (ok && !(e->pool = wf_pool_new(m->threads))) status = WF_NO_THREAD;
    if (status != WF_OK) {
        wf_engine_free(e);
        return status;
    }
    *engine = e;
    return WF_OK;
}

void wf_engine_free(wf_engine *e) {
    if (!e) return;
    const wf_model *m = &e->model;
    wf_pool_free(e->pool);
    for (int i = 0; e->workers && i < m->threads; i++) {
        free(e->workers[i].scratch);
        free(e->workers[i].output[0]);
        wf_unmap(e->workers[i].scaled, 2 * (int64_t)sizeof(float) * m->vocabulary);
    }
    wf_unmap(e->hidden, ROW_FLOATS * (int64_t)m->hidden);
    wf_unmap(e->qkv, ROW_FLOATS * e->qkv_size);
    wf_unmap(e->attended, ROW_FLOATS * e->query_size);
    wf_unmap(e->x, e->x_bytes);
    wf_unmap(e->inner, e->inner_bytes);
    free(e->workers);
    free(e->layers);
    free(e->units);
    free(e->part_states);
    free(e->part_outputs);
    free(e);
}
