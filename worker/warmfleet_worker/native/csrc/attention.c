/* Deals attention to threads, and merges what they computed of one row. */
#include "engine.h"

#include <math.h>

typedef struct {
    const wf_pass *pass;
    int layer;
} attention_job;

static float *head_at(const wf_engine *e, int row, int head) {
    return e->attended + row * e->query_size + (int64_t)head * e->model.head_dim;
}

static void attend_unit(void *context, int index, int worker) {
    const attention_job *job = context;
    const wf_pass *p = job->pass;
    wf_engine *e = p->engine;
    const wf_model *m = &e->model;
    const wf_step_arguments *s = p->step;
    const wf_unit *u = &e->units[index];
    wf_worker *w = &e->workers[worker];
    int last = u->row, dim = m->head_dim;
    while (last + 1 < p->rows && s->row_chunks[p->row0 + last + 1] == u->chunk) last++;
    wf_attention a = {
        .queries = e->qkv + u->row * e->qkv_size, .query_stride = e->qkv_size,
        .first_position = s->positions[p->row0 + u->row], .rows = u->rows,
        .head_dim = dim, .window_tokens = m->window_tokens,
        .scale = 1.0f / sqrtf((float)dim),
        .keys = wf_keys_at(m, job->layer, u->kv_head), .block_stride = m->block_stride_bytes,
        .value_offset = m->value_stride_bytes, .block_ids = s->block_ids + s->first_block[u->chunk],
        .block_size_tokens = m->block_size_tokens, .chunk_end = s->positions[p->row0 + last] + 1,
    };
    if (u->partition >= 0) {
        e->attention->attend(&a, u->first_head, u->heads, u->partition, w->scratch, e->part_states + u->part,
                             e->part_outputs + (int64_t)u->part * dim);
        return;
    }
    int rows = u->rows * u->heads, parts = (a.first_position + a.rows - 1) / WF_PARTITION + 1;
    int first = m->window_tokens ? (a.first_position + 1 - m->window_tokens) / WF_PARTITION : 0;
    for (int r = 0; r < rows; r++) w->state[0][r].maximum = -INFINITY;
    for (int part = first > 0 ? first : 0; part < parts; part++) {
        e->attention->attend(&a, u->first_head, u->heads, part, w->scratch, w->state[1], w->output[1]);
        for (int r = 0; r < rows; r++)
            e->row->merge(&w->state[0][r], w->output[0] + r * dim, &w->state[1][r], w->output[1] + r * dim, dim);
    }
    for (int r = 0; r < rows; r++)
        e->row->finish(&w->state[0][r], w->output[0] + r * dim, dim,
                       head_at(e, u->row + r / u->heads, u->first_head + r % u->heads));
}

/* Merge the partitions of rows whose units took one each. */
static void merge_parts(wf_engine *e) {
    int dim = e->model.head_dim;
    for (int i = 0; i < e->unit_count;) {
        const wf_unit *u = &e->units[i];
        if (u->partition < 0) {
            i++;
            continue;
        }
        int next = i + 1;
        while (next < e->unit_count && e->units[next].row == u->row && e->units[next].first_head == u->first_head) {
            for (int h = 0; h < u->heads; h++)
                e->row->merge(&e->part_states[u->part + h], e->part_outputs + (int64_t)(u->part + h) * dim,
                              &e->part_states[e->units[next].part + h],
                              e->part_outputs + (int64_t)(e->units[next].part + h) * dim, dim);
            next++;
        }
        for (int h = 0; h < u->heads; h++)
            e->row->finish(&e->part_states[u->part + h], e->part_outputs + (int64_t)(u->part + h) * dim, dim,
                           head_at(e, u->row, u->first_head + h));
        i = next;
    }
}

/* Deal the rows of a pass to units of attention: as many rows of a chunk and heads of one KV head as a tile
 * holds. Where that gives too few units for the threads, single rows are dealt by partition, too; which unit
 * computes a partition changes no bit of it. */
void wf_plan_attention(const wf_pass *p) {
    wf_engine *e = p->engine;
    const wf_model *m = &e->model;
    const wf_step_arguments *s = p->step;
    int group = wf_query_heads(m), tile = e->attention->tile_rows;
    int heads = group < tile ? group : tile, rows_of_unit = tile / heads;
    int heads_calls = (group + heads - 1) / heads;
    int few = 0;
    for (int row = 0, units = 0; row < p->rows; few = units < 4 * m->threads) {
        int end = row + 1;
        while (end < p->rows && end - row < rows_of_unit &&
               s->row_chunks[p->row0 + end] == s->row_chunks[p->row0 + row])
            end++;
        units += m->kv_heads * heads_calls;
        row = end;
    }
    e->unit_count = 0;
    int part = 0;
    for (int row = 0; row < p->rows;) {
        int chunk = s->row_chunks[p->row0 + row], end = row + 1;
        while (end < p->rows && end - row < rows_of_unit && s->row_chunks[p->row0 + end] == chunk) end++;
        int position = s->positions[p->row0 + row], parts = position / WF_PARTITION + 1;
        int first = m->window_tokens ? (position + 1 - m->window_tokens) / WF_PARTITION : 0;
        if (first < 0) first = 0;
        int64_t needed = (int64_t)m->heads * (parts - first);
        int alone = few && end == row + 1 && parts - first > 1 && part + needed <= e->part_room;
        for (int kv_head = 0; kv_head < m->kv_heads; kv_head++)
            for (int head = kv_head * group; head < (kv_head + 1) * group; head += heads) {
                wf_unit unit = {row, end - row, chunk, kv_head, head, heads, -1, 0};
                if (head + heads > (kv_head + 1) * group) unit.heads = (kv_head + 1) * group - head;
                if (!alone) {
                    e->units[e->unit_count++] = unit;
                    continue;
                }
                for (unit.partition = first; unit.partition < parts; unit.partition++) {
                    unit.part = part;
                    part += unit.heads;
                    e->units[e->unit_count++] = unit;
                }
            }
        row = end;
    }
}

void wf_attend(const wf_pass *pass, int layer) {
    wf_engine *e = pass->engine;
    wf_pool_run(e->pool, attend_unit, &(attention_job){pass, layer}, e->unit_count);
    merge_parts(e);
}
