/* One step of a decoder-only transformer over the paged KV arena: what model/transformer.py computes, in passes
 * of up to WF_MAX_ROWS rows and five jobs per layer.
 *
 * The residual stream, norms, rotations, scores and sums are float32; weights, keys, values and, at the level
 * AVX512-BF16, what is multiplied with them are of the model's dtype.
 */
#define _GNU_SOURCE
#include "kernels.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PANELS_PER_TILE = 4,        /* of the weights that a thread takes at once */
    MANY_ROWS = 8,              /* from so many rows on, threads share the work on rows, too */
    MOST_PARTS = 1 << 16,       /* of queries whose context is dealt by partition: 32 MiB of heads of 128 */
    HUGE_PAGE = 2 << 20,
};

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
    const wf_kernels *kernels;
    wf_pool *pool;
    wf_worker *workers;
    int64_t query_size, qkv_size;
    float *hidden, *qkv;
    void *x, *attended, *inner;
    wf_unit *units;
    int32_t unit_count, unit_room;
    wf_softmax *part_states;
    float *part_outputs;
    int32_t part_room;
    /* What the running job reads. */
    const wf_step_arguments *step;
    int32_t row0, rows, layer;
    wf_product product;
    int32_t panels, panels_per_tile;
    const float *norm_weight, *norm_from;
    const float *logits;
    const wf_sampling *sampling;
    int32_t *sampled, columns;
};

/* Kernels of each level and dtype; NULL: the level has none for it. */
static const wf_kernels *const KERNELS[WF_LEVELS][WF_DTYPES] = {
    [WF_AVX2] = {[WF_BF16] = &wf_avx2_bf16, [WF_F32] = &wf_avx2_f32},
    [WF_AVX512] = {[WF_BF16] = &wf_avx512_bf16, [WF_F32] = &wf_avx512_f32},
    [WF_AVX512_BF16] = {[WF_BF16] = &wf_avx512_bf16_bf16},
};

int wf_level_runs(int level) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    if (level == WF_AVX2) return 1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return 0;
    return level == WF_AVX512 || (level == WF_AVX512_BF16 && __builtin_cpu_supports("avx512bf16"));
}

void *wf_map(int64_t bytes) {
    size_t size = ((size_t)bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return NULL;
    madvise(address, size, MADV_HUGEPAGE);
    return address;
}

void wf_unmap(void *address, int64_t bytes) {
    if (address) munmap(address, ((size_t)bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
}

static int64_t element_bytes(int dtype) { return dtype == WF_F32 ? 4 : 2; }
static int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
static int64_t panels_of(int64_t outputs) { return (outputs + WF_LANES - 1) / WF_LANES; }

int64_t wf_packed_bytes(int dtype, int64_t outputs, int64_t inputs, int interleaved) {
    int64_t panels = interleaved ? 2 * panels_of(outputs / 2) : panels_of(outputs);
    return panels * WF_LANES * up(inputs, 2) * element_bytes(dtype);
}

void wf_pack(int dtype, const void *matrix, int64_t outputs, int64_t inputs, int interleaved, void *packed) {
    int64_t size = element_bytes(dtype), half = interleaved ? outputs / 2 : outputs;
    int64_t panel_bytes = WF_LANES * up(inputs, 2) * size;
    const uint8_t *from = matrix;
    for (int part = 0; part < (interleaved ? 2 : 1); part++)
        for (int64_t n = 0; n < half; n++) {
            int64_t panel = interleaved ? 2 * (n / WF_LANES) + part : n / WF_LANES;
            uint8_t *to = (uint8_t *)packed + panel * panel_bytes;
            const uint8_t *row = from + (part * half + n) * inputs * size;
            int64_t lane = n % WF_LANES;
            if (dtype == WF_F32)
                for (int64_t k = 0; k < inputs; k++) memcpy(to + (k * WF_LANES + lane) * 4, row + k * 4, 4);
            else
                for (int64_t k = 0; k < inputs; k++)
                    memcpy(to + ((k / 2 * WF_LANES + lane) * 2 + (k & 1)) * 2, row + k * 2, 2);
        }
}

int64_t wf_attend_scratch(int head_dim) {
    return WF_MAX_TILE_ROWS * (head_dim + 1) + 2 * WF_MAX_TILE_ROWS * WF_PARTITION +
           2 * WF_LANES * (head_dim + WF_LANES);
}

static int query_heads(const wf_model *m) { return m->heads / m->kv_heads; }

int wf_engine_new(const wf_model *model, wf_engine **engine) {
    const wf_model *m = model;
    if (m->hidden < 1 || m->intermediate < 1 || m->layers < 1 || m->heads < 1 || m->kv_heads < 1 ||
        m->heads % m->kv_heads || m->head_dim < 2 || m->head_dim % 2 || m->head_dim > WF_MAX_HEAD_DIM ||
        m->vocabulary < 1 || m->threads < 1 || m->block_size_tokens < WF_LANES ||
        m->block_size_tokens % WF_LANES || m->total_blocks < 1 || m->positions < 1 || m->window_tokens < 0 ||
        m->level < 0 || m->level >= WF_LEVELS || m->dtype < 0 || m->dtype >= WF_DTYPES)
        return WF_BAD_ARGUMENT;
    if (!wf_level_runs(m->level) || !KERNELS[m->level][m->dtype]) return WF_NO_LEVEL;
    wf_engine *e = calloc(1, sizeof *e);
    if (!e) return WF_NO_MEMORY;
    e->model = *model;
    e->kernels = KERNELS[m->level][m->dtype];
    e->query_size = (int64_t)m->heads * m->head_dim;
    e->qkv_size = e->query_size + 2 * (int64_t)m->kv_heads * m->head_dim;
    e->layers = malloc(sizeof(wf_layer) * (size_t)m->layers);
    e->workers = calloc((size_t)m->threads, sizeof *e->workers);
    int64_t unit_room = WF_MAX_ROWS * (int64_t)m->heads + MOST_PARTS;
    int64_t context_parts = m->positions / WF_PARTITION + 1, few_units = 4 * (int64_t)m->threads;
    int64_t part_room = few_units * context_parts * query_heads(m);
    if (part_room > MOST_PARTS) part_room = MOST_PARTS;
    if (unit_room > INT32_MAX) {
        wf_engine_free(e);
        return WF_NO_MEMORY;
    }
    e->unit_room = (int32_t)unit_room;
    e->part_room = (int32_t)part_room;
    size_t rows = WF_MAX_ROWS, wide = (size_t)e->kernels->activation_bytes;
    e->hidden = wf_map((int64_t)(rows * sizeof(float)) * m->hidden);
    e->qkv = wf_map((int64_t)(rows * sizeof(float)) * e->qkv_size);
    e->x = wf_map((int64_t)(rows * wide) * up(m->hidden, 2));
    e->attended = wf_map((int64_t)(rows * wide) * e->query_size);
    e->inner = wf_map((int64_t)(rows * wide) * up(m->intermediate, 2));
    e->units = malloc(sizeof(wf_unit) * (size_t)e->unit_room);
    e->part_states = malloc(sizeof(wf_softmax) * (size_t)e->part_room);
    e->part_outputs = malloc(sizeof(float) * (size_t)e->part_room * (size_t)m->head_dim);
    int ok = e->layers && e->workers && e->hidden && e->qkv && e->x && e->attended && e->inner && e->units &&
             e->part_states && e->part_outputs;
    for (int i = 0; ok && i < m->threads; i++) {
        wf_worker *w = &e->workers[i];
        size_t output = WF_MAX_TILE_ROWS * (size_t)m->head_dim;
        w->scratch = aligned_alloc(64, (size_t)up(wf_attend_scratch(m->head_dim) * 4, 64));
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
    int64_t rows = WF_MAX_ROWS, wide = e->kernels->activation_bytes;
    wf_pool_free(e->pool);
    for (int i = 0; e->workers && i < m->threads; i++) {
        free(e->workers[i].scratch);
        free(e->workers[i].output[0]);
        wf_unmap(e->workers[i].scaled, 2 * (int64_t)sizeof(float) * m->vocabulary);
    }
    wf_unmap(e->hidden, rows * 4 * m->hidden);
    wf_unmap(e->qkv, rows * 4 * e->qkv_size);
    wf_unmap(e->x, rows * wide * up(m->hidden, 2));
    wf_unmap(e->attended, rows * wide * e->query_size);
    wf_unmap(e->inner, rows * wide * up(m->intermediate, 2));
    free(e->workers);
    free(e->layers);
    free(e->units);
    free(e->part_states);
    free(e->part_outputs);
    free(e);
}

/* Rows of the packed tile that a row is in, the first of them, and where the tile begins. */
static int tile_rows(const wf_engine *e, int rows, int row) {
    int first = row / e->kernels->tile_rows * e->kernels->tile_rows;
    return rows - first < e->kernels->tile_rows ? rows - first : e->kernels->tile_rows;
}
static void *tile_at(const wf_engine *e, void *packed, int row, int64_t inputs) {
    int first = row / e->kernels->tile_rows * e->kernels->tile_rows;
    return (uint8_t *)packed + first * up(inputs, 2) * e->kernels->activation_bytes;
}

static void norm_tile(void *context, int tile, int worker) {
    wf_engine *e = context;
    int first = tile * e->kernels->tile_rows, rows = tile_rows(e, e->rows, first), hidden = e->model.hidden;
    (void)worker;
    e->kernels->norm(e->norm_from + (int64_t)first * hidden, hidden, rows, hidden, e->norm_weight,
                     e->model.norm_epsilon, tile_at(e, e->x, first, hidden), rows, 0);
}

static void run_rows(wf_engine *e, wf_tile compute, int tiles) {
    if (e->rows >= MANY_ROWS) {
        wf_pool_run(e->pool, compute, e, tiles);
        return;
    }
    for (int tile = 0; tile < tiles; tile++) compute(e, tile, 0);
}

static void norm(wf_engine *e, const float *from, const float *weight) {
    e->norm_from = from;
    e->norm_weight = weight;
    run_rows(e, norm_tile, (e->rows + e->kernels->tile_rows - 1) / e->kernels->tile_rows);
}

static void product_tile(void *context, int tile, int worker) {
    wf_engine *e = context;
    int first = tile * e->panels_per_tile;
    int count = e->panels - first < e->panels_per_tile ? e->panels - first : e->panels_per_tile;
    (void)worker;
    (e->product.packed_y ? e->kernels->swiglu : e->kernels->product)(&e->product, first, count);
}

/* Multiply the packed rows `x` with a matrix. */
static void multiply(wf_engine *e, const void *weights, const void *x, int inputs, int outputs, const float *bias,
                     float *y, int adds, void *packed_y) {
    e->product = (wf_product){
        .weights = weights, .x = x, .rows = e->rows, .inputs = inputs, .outputs = outputs, .bias = bias,
        .y = y, .y_stride = outputs, .adds = adds, .packed_y = packed_y,
    };
    e->panels = (int)panels_of(outputs);
    e->panels_per_tile = packed_y ? PANELS_PER_TILE / 2 : PANELS_PER_TILE;
    wf_pool_run(e->pool, product_tile, e, (e->panels + e->panels_per_tile - 1) / e->panels_per_tile);
}

/* Where a KV head's keys of a layer are in block 0. */
static uint8_t *keys_at(const wf_engine *e, int layer, int kv_head) {
    const wf_model *m = &e->model;
    return (uint8_t *)m->arena + layer * m->layer_stride_bytes + kv_head * m->head_stride_bytes;
}

static void rotate_row(void *context, int row, int worker) {
    wf_engine *e = context;
    const wf_model *m = &e->model;
    const wf_layer *layer = &e->layers[e->layer];
    const wf_step_arguments *s = e->step;
    int dim = m->head_dim, position = s->positions[e->row0 + row], chunk = s->row_chunks[e->row0 + row];
    float *heads = e->qkv + row * e->qkv_size, *values = heads + (m->heads + m->kv_heads) * (int64_t)dim;
    const float *cosine = m->cosine + (int64_t)position * (dim / 2), *sine = m->sine + (int64_t)position * (dim / 2);
    (void)worker;
    for (int h = 0; h < m->heads + m->kv_heads; h++)
        e->kernels->rotate(heads + (int64_t)h * dim, dim, h < m->heads ? layer->query_norm : layer->key_norm,
                           m->norm_epsilon, cosine, sine);
    int64_t block = s->block_ids[s->first_block[chunk] + position / m->block_size_tokens];
    int in_block = position % m->block_size_tokens;
    int64_t group = (int64_t)(in_block / WF_LANES) * WF_LANES * dim * e->kernels->weight_bytes;
    for (int h = 0; h < m->kv_heads; h++) {
        uint8_t *keys = keys_at(e, e->layer, h) + block * m->block_stride_bytes + group;
        e->kernels->store(heads + (int64_t)(m->heads + h) * dim, values + (int64_t)h * dim, dim, keys,
                          keys + m->value_stride_bytes, in_block % WF_LANES);
    }
}

static void attend_unit(void *context, int index, int worker) {
    wf_engine *e = context;
    const wf_model *m = &e->model;
    const wf_kernels *k = e->kernels;
    const wf_step_arguments *s = e->step;
    const wf_unit *u = &e->units[index];
    wf_worker *w = &e->workers[worker];
    int last = u->row, dim = m->head_dim;
    while (last + 1 < e->rows && s->row_chunks[e->row0 + last + 1] == u->chunk) last++;
    wf_attention a = {
        .queries = e->qkv + u->row * e->qkv_size, .query_stride = e->qkv_size,
        .first_position = s->positions[e->row0 + u->row], .rows = u->rows,
        .head_dim = dim, .window_tokens = m->window_tokens,
        .scale = 1.0f / sqrtf((float)dim),
        .keys = keys_at(e, e->layer, u->kv_head), .block_stride = m->block_stride_bytes,
        .value_offset = m->value_stride_bytes, .block_ids = s->block_ids + s->first_block[u->chunk],
        .block_size_tokens = m->block_size_tokens, .chunk_end = s->positions[e->row0 + last] + 1,
    };
    if (u->partition >= 0) {
        k->attend(&a, u->first_head, u->heads, u->partition, w->scratch, e->part_states + u->part,
                  e->part_outputs + (int64_t)u->part * dim);
        return;
    }
    int rows = u->rows * u->heads, parts = (a.first_position + a.rows - 1) / WF_PARTITION + 1;
    int first = m->window_tokens ? (a.first_position + 1 - m->window_tokens) / WF_PARTITION : 0;
    for (int r = 0; r < rows; r++) w->state[0][r].maximum = -INFINITY;
    for (int part = first > 0 ? first : 0; part < parts; part++) {
        k->attend(&a, u->first_head, u->heads, part, w->scratch, w->state[1], w->output[1]);
        for (int r = 0; r < rows; r++)
            k->merge(&w->state[0][r], w->output[0] + r * dim, &w->state[1][r], w->output[1] + r * dim, dim);
    }
    for (int r = 0; r < rows; r++) {
        int row = u->row + r / u->heads, head = u->first_head + r % u->heads;
        k->finish(&w->state[0][r], w->output[0] + r * dim, dim, tile_at(e, e->attended, row, e->query_size),
                  tile_rows(e, e->rows, row), row % k->tile_rows, head * dim);
    }
}

/* Merge the partitions of rows whose units took one each. */
static void merge_parts(wf_engine *e) {
    const wf_kernels *k = e->kernels;
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
                k->merge(&e->part_states[u->part + h], e->part_outputs + (int64_t)(u->part + h) * dim,
                         &e->part_states[e->units[next].part + h],
                         e->part_outputs + (int64_t)(e->units[next].part + h) * dim, dim);
            next++;
        }
        for (int h = 0; h < u->heads; h++)
            k->finish(&e->part_states[u->part + h], e->part_outputs + (int64_t)(u->part + h) * dim, dim,
                      tile_at(e, e->attended, u->row, e->query_size), tile_rows(e, e->rows, u->row),
                      u->row % k->tile_rows, (u->first_head + h) * dim);
        i = next;
    }
}

/* Deal the rows of a pass to units of attention: as many rows of a chunk and heads of one KV head as a tile
 * holds. Where that gives too few units for the threads, single rows are dealt by partition, too; which unit
 * computes a partition changes no bit of it. */
static void plan_units(wf_engine *e) {
    const wf_model *m = &e->model;
    const wf_step_arguments *s = e->step;
    int group = query_heads(m), tile = e->kernels->tile_rows;
    int heads = group < tile ? group : tile, rows_of_unit = tile / heads;
    int heads_calls = (group + heads - 1) / heads;
    int few = 0;
    for (int row = 0, units = 0; row < e->rows; few = units < 4 * m->threads) {
        int end = row + 1;
        while (end < e->rows && end - row < rows_of_unit &&
               s->row_chunks[e->row0 + end] == s->row_chunks[e->row0 + row])
            end++;
        units += m->kv_heads * heads_calls;
        row = end;
    }
    e->unit_count = 0;
    int part = 0;
    for (int row = 0; row < e->rows;) {
        int chunk = s->row_chunks[e->row0 + row], end = row + 1;
        while (end < e->rows && end - row < rows_of_unit && s->row_chunks[e->row0 + end] == chunk) end++;
        int position = s->positions[e->row0 + row], parts = position / WF_PARTITION + 1;
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

/* Row `token` of the embedding, as float32. */
static void embed(const wf_engine *e, int32_t token, float *to) {
    const wf_model *m = &e->model;
    int64_t size = element_bytes(m->dtype);
    const uint8_t *row = (const uint8_t *)m->embedding + token * (int64_t)m->hidden * size;
    const uint8_t *panel = (const uint8_t *)m->head + token / WF_LANES * up(m->hidden, 2) * WF_LANES * size;
    int lane = token % WF_LANES;
    for (int k = 0; k < m->hidden; k++) {
        if (m->dtype == WF_F32) {
            memcpy(to + k, m->embedding ? row + 4 * k : panel + (k * WF_LANES + lane) * 4, 4);
            continue;
        }
        uint16_t half;
        memcpy(&half, m->embedding ? row + 2 * k : panel + ((k / 2 * WF_LANES + lane) * 2 + (k & 1)) * 2, 2);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(to + k, &bits, 4);
    }
}

static void pass(wf_engine *e) {
    const wf_model *m = &e->model;
    const wf_step_arguments *s = e->step;
    int64_t pass_floats = (int64_t)e->rows * m->hidden;
    for (int row = 0; row < e->rows; row++)
        embed(e, s->token_ids[e->row0 + row], e->hidden + (int64_t)row * m->hidden);
    plan_units(e);
    for (e->layer = 0; e->layer < m->layers; e->layer++) {
        const wf_layer *layer = &e->layers[e->layer];
        if (s->trace)
            memcpy(s->trace + ((int64_t)e->layer * s->rows + e->row0) * m->hidden, e->hidden,
                   sizeof(float) * (size_t)pass_floats);
        norm(e, e->hidden, layer->input_norm);
        multiply(e, layer->qkv, e->x, m->hidden, (int)e->qkv_size, layer->qkv_bias, e->qkv, 0, NULL);
        run_rows(e, rotate_row, e->rows);
        wf_pool_run(e->pool, attend_unit, e, e->unit_count);
        merge_parts(e);
        multiply(e, layer->output, e->attended, (int)e->query_size, m->hidden, layer->output_bias, e->hidden, 1,
                 NULL);
        norm(e, e->hidden, layer->mlp_norm);
        multiply(e, layer->gate_up, e->x, m->hidden, m->intermediate, NULL, NULL, 0, e->inner);
        multiply(e, layer->down, e->inner, m->intermediate, m->hidden, NULL, e->hidden, 1, NULL);
    }
    if (s->trace)
        memcpy(s->trace + ((int64_t)m->layers * s->rows + e->row0) * m->hidden, e->hidden,
               sizeof(float) * (size_t)pass_floats);
    for (int row = 0; row < e->rows; row++)
        s->finite[e->row0 + row] = (uint8_t)e->kernels->finite(e->hidden + (int64_t)row * m->hidden, m->hidden);
}

static int valid(const wf_engine *e, const wf_step_arguments *s) {
    const wf_model *m = &e->model;
    if (s->rows < 0 || s->chunks < 0 || s->wanted < 0) return 0;
    for (int row = 0; row < s->rows; row++) {
        int chunk = s->row_chunks[row];
        if (s->token_ids[row] < 0 || s->token_ids[row] >= m->vocabulary) return 0;
        if (s->positions[row] < 0 || s->positions[row] >= m->positions || chunk < 0 || chunk >= s->chunks) return 0;
        if (s->positions[row] / m->block_size_tokens >= s->first_block[chunk + 1] - s->first_block[chunk]) return 0;
        if (row && chunk == s->row_chunks[row - 1] && s->positions[row] != s->positions[row - 1] + 1) return 0;
    }
    for (int64_t i = 0; s->chunks && i < s->first_block[s->chunks]; i++)
        if (s->block_ids[i] < 0 || s->block_ids[i] >= m->total_blocks) return 0;
    for (int i = 0; i < s->wanted; i++)
        if (s->wanted_rows[i] < (i ? s->wanted_rows[i - 1] : 0) || s->wanted_rows[i] >= s->rows) return 0;
    return 1;
}

int wf_step(wf_engine *e, const wf_step_arguments *s) {
    if (!e || !valid(e, s)) return WF_BAD_ARGUMENT;
    e->step = s;
    int taken = 0;
    for (e->row0 = 0; e->row0 < s->rows; e->row0 += e->rows) {
        e->rows = s->rows - e->row0 < WF_MAX_ROWS ? s->rows - e->row0 : WF_MAX_ROWS;
        pass(e);
        for (; taken < s->wanted && s->wanted_rows[taken] < e->row0 + e->rows; taken++)
            memcpy(s->hidden + (int64_t)taken * e->model.hidden,
                   e->hidden + (int64_t)(s->wanted_rows[taken] - e->row0) * e->model.hidden,
                   sizeof(float) * (size_t)e->model.hidden);
    }
    return WF_OK;
}

int wf_logits(wf_engine *e, const float *hidden, int32_t rows, float *logits) {
    if (!e || rows < 0) return WF_BAD_ARGUMENT;
    const wf_model *m = &e->model;
    for (int row = 0; row < rows; row += e->rows) {
        e->rows = rows - row < WF_MAX_ROWS ? rows - row : WF_MAX_ROWS;
        norm(e, hidden + (int64_t)row * m->hidden, m->final_norm);
        multiply(e, m->head, e->x, m->hidden, m->vocabulary, NULL, logits + (int64_t)row * m->vocabulary, 0, NULL);
    }
    return WF_OK;
}

static void sample_row(void *context, int row, int worker) {
    wf_engine *e = context;
    e->sampled[row] = e->kernels->sample(e->logits + (int64_t)row * e->columns, e->columns, e->sampling + row,
                                         e->workers[worker].scaled);
}

int wf_sample(wf_engine *e, const float *logits, int32_t rows, int32_t columns, const wf_sampling *sampling,
              int32_t *token_ids) {
    if (!e || rows < 0 || columns < 1 || columns > e->model.vocabulary) return WF_BAD_ARGUMENT;
    e->logits = logits;
    e->columns = columns;
    e->sampling = sampling;
    e->sampled = token_ids;
    if (rows > 0) wf_pool_run(e->pool, sample_row, e, rows);
    return WF_OK;
}
