/* One step of a decoder-only transformer over the paged KV arena: what model/transformer.py computes, in passes
 * of up to WF_MAX_ROWS rows, each of them layer by layer.
 *
 * The residual stream, norms, rotations, scores and sums are float32. Each job is a struct on the stack of the
 * function that runs it.
 */
#include "engine.h"

#include <string.h>

enum {
    PANELS_PER_TILE = 4,        /* of the weights that a thread takes at once */
    MANY_ROWS = 8,              /* from so many rows on, threads share the work on rows, too */
};

/* Run a job over rows: alone where there are few, for waking threads takes longer. */
static void run_rows(wf_engine *e, int rows, wf_tile compute, void *job, int tiles) {
    if (rows >= MANY_ROWS) {
        wf_pool_run(e->pool, compute, job, tiles);
        return;
    }
    for (int tile = 0; tile < tiles; tile++) compute(job, tile, 0);
}

typedef struct {
    const wf_projection_kernels *projection;
    wf_packing packing;
} packing_job;

static void pack_tile(void *context, int tile, int worker) {
    const packing_job *job = context;
    (void)worker;
    job->projection->pack(&job->packing, tile);
}

/* Pack `rows` rows of `inputs` floats at `from` into e->x, after an RMS norm where norm_weight is not NULL. */
static void pack_rows(wf_engine *e, const float *from, int rows, int64_t inputs, const float *norm_weight) {
    packing_job job = {
        e->projection,
        {.x = from, .stride = inputs, .rows = rows, .inputs = (int32_t)inputs, .norm_weight = norm_weight,
         .norm_epsilon = e->model.norm_epsilon, .packed = e->x},
    };
    int tile_rows = e->projection->tile_rows;
    run_rows(e, rows, pack_tile, &job, (rows + tile_rows - 1) / tile_rows);
}

typedef struct {
    const wf_projection_kernels *projection;
    wf_product product;
    int32_t panels, panels_per_tile;
} product_job;

static void product_tile(void *context, int tile, int worker) {
    const product_job *job = context;
    int first = tile * job->panels_per_tile, left = job->panels - first;
    int count = left < job->panels_per_tile ? left : job->panels_per_tile;
    (void)worker;
    (job->product.packed_y ? job->projection->swiglu : job->projection->product)(&job->product, first, count);
}

/* Compute a product, all its panels. */
static void multiply(wf_engine *e, wf_product product) {
    int per_tile = PANELS_PER_TILE;
    if (product.packed_y) {
        /* Pairs of panels, and whole groups of the activations that they become. */
        int group = e->projection->activations.inputs / WF_LANES;
        per_tile = group > PANELS_PER_TILE / 2 ? group : PANELS_PER_TILE / 2;
    }
    product.y_stride = product.outputs;
    product_job job = {e->projection, product, (product.outputs + WF_LANES - 1) / WF_LANES, per_tile};
    wf_pool_run(e->pool, product_tile, &job, (job.panels + per_tile - 1) / per_tile);
}

typedef struct {
    const wf_pass *pass;
    int layer;
} layer_job;

/* Rotate the heads of one row, and store its keys and values. */
static void rotate_row(void *context, int row, int worker) {
    const layer_job *job = context;
    const wf_pass *p = job->pass;
    const wf_engine *e = p->engine;
    const wf_model *m = &e->model;
    const wf_layer *layer = &e->layers[job->layer];
    const wf_step_arguments *s = p->step;
    int dim = m->head_dim, position = s->positions[p->row0 + row], chunk = s->row_chunks[p->row0 + row];
    float *heads = e->qkv + row * e->qkv_size, *values = heads + (m->heads + m->kv_heads) * (int64_t)dim;
    const float *cosine = m->cosine + (int64_t)position * (dim / 2), *sine = m->sine + (int64_t)position * (dim / 2);
    (void)worker;
    for (int h = 0; h < m->heads + m->kv_heads; h++)
        e->row->rotate(heads + (int64_t)h * dim, dim, h < m->heads ? layer->query_norm : layer->key_norm,
                       m->norm_epsilon, cosine, sine);
    int64_t block = s->block_ids[s->first_block[chunk] + position / m->block_size_tokens];
    int in_block = position % m->block_size_tokens;
    int64_t group = (int64_t)(in_block / WF_LANES) * WF_LANES * dim * e->attention->element_bytes;
    for (int h = 0; h < m->kv_heads; h++) {
        uint8_t *keys = wf_keys_at(m, job->layer, h) + block * m->block_stride_bytes + group;
        e->attention->store(heads + (int64_t)(m->heads + h) * dim, values + (int64_t)h * dim, dim, keys,
                            keys + m->value_stride_bytes, in_block % WF_LANES);
    }
}

static void compute_layer(const wf_pass *pass, int index) {
    wf_engine *e = pass->engine;
    const wf_model *m = &e->model;
    const wf_layer *layer = &e->layers[index];
    int rows = pass->rows;
    pack_rows(e, e->hidden, rows, m->hidden, layer->input_norm);
    multiply(e, (wf_product){.weights = layer->qkv, .x = e->x, .rows = rows, .inputs = m->hidden,
                             .outputs = (int32_t)e->qkv_size, .bias = layer->qkv_bias, .y = e->qkv});
    layer_job job = {pass, index};
    run_rows(e, rows, rotate_row, &job, rows);
    wf_attend(pass, index);
    pack_rows(e, e->attended, rows, e->query_size, NULL);
    multiply(e, (wf_product){.weights = layer->output, .x = e->x, .rows = rows, .inputs = (int32_t)e->query_size,
                             .outputs = m->hidden, .bias = layer->output_bias, .y = e->hidden, .adds = 1});
    pack_rows(e, e->hidden, rows, m->hidden, layer->mlp_norm);
    multiply(e, (wf_product){.weights = layer->gate_up, .x = e->x, .rows = rows, .inputs = m->hidden,
                             .outputs = m->intermediate, .packed_y = e->inner});
    multiply(e, (wf_product){.weights = layer->down, .x = e->inner, .rows = rows, .inputs = m->intermediate,
                             .outputs = m->hidden, .y = e->hidden, .adds = 1});
}

/* What a pass has in its residual stream before layer `index`, or after the last one. */
static void record(const wf_pass *p, int index) {
    const wf_step_arguments *s = p->step;
    int64_t hidden = p->engine->model.hidden;
    if (s->trace)
        memcpy(s->trace + ((int64_t)index * s->rows + p->row0) * hidden, p->engine->hidden,
               sizeof(float) * (size_t)(p->rows * hidden));
}

static void compute_pass(const wf_pass *p) {
    wf_engine *e = p->engine;
    const wf_model *m = &e->model;
    for (int row = 0; row < p->rows; row++)
        e->projection->row(m->embedding, m->hidden, p->step->token_ids[p->row0 + row],
                           e->hidden + (int64_t)row * m->hidden);
    wf_plan_attention(p);
    for (int layer = 0; layer < m->layers; layer++) {
        record(p, layer);
        compute_layer(p, layer);
    }
    record(p, m->layers);
    for (int row = 0; row < p->rows; row++)
        p->step->finite[p->row0 + row] = (uint8_t)e->row->finite(e->hidden + (int64_t)row * m->hidden, m->hidden);
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

static int rows_of_pass(int left) { return left < WF_MAX_ROWS ? left : WF_MAX_ROWS; }

int wf_step(wf_engine *e, const wf_step_arguments *s) {
    if (!e || !valid(e, s)) return WF_BAD_ARGUMENT;
    int taken = 0;
    for (wf_pass p = {.engine = e, .step = s}; p.row0 < s->rows; p.row0 += p.rows) {
        p.rows = rows_of_pass(s->rows - p.row0);
        compute_pass(&p);
        for (; taken < s->wanted && s->wanted_rows[taken] < p.row0 + p.rows; taken++)
            memcpy(s->hidden + (int64_t)taken * e->model.hidden,
                   e->hidden + (int64_t)(s->wanted_rows[taken] - p.row0) * e->model.hidden,
                   sizeof(float) * (size_t)e->model.hidden);
    }
    return WF_OK;
}

int wf_logits(wf_engine *e, const float *hidden, int32_t rows, float *logits) {
    if (!e || rows < 0) return WF_BAD_ARGUMENT;
    const wf_model *m = &e->model;
    for (int row = 0, count; row < rows; row += count) {
        count = rows_of_pass(rows - row);
        pack_rows(e, hidden + (int64_t)row * m->hidden, count, m->hidden, m->final_norm);
        multiply(e, (wf_product){.weights = m->head, .x = e->x, .rows = count, .inputs = m->hidden,
                                 .outputs = m->vocabulary, .y = logits + (int64_t)row * m->vocabulary});
    }
    return WF_OK;
}

typedef struct {
    const wf_engine *engine;
    const float *logits;
    int32_t columns;
    const wf_sampling *sampling;
    int32_t *token_ids;
} sampling_job;

static void sample_row(void *context, int row, int worker) {
    const sampling_job *job = context;
    const wf_engine *e = job->engine;
    job->token_ids[row] = e->row->sample(job->logits + (int64_t)row * job->columns, job->columns,
                                         job->sampling + row, e->workers[worker].scaled);
}

int wf_sample(wf_engine *e, const float *logits, int32_t rows, int32_t columns, const wf_sampling *sampling,
              int32_t *token_ids) {
    if (!e || rows < 0 || columns < 1 || columns > e->model.vocabulary) return WF_BAD_ARGUMENT;
    sampling_job job = {e, logits, columns, sampling, token_ids};
    if (rows > 0) wf_pool_run(e->pool, sample_row, &job, rows);
    return WF_OK;
}
