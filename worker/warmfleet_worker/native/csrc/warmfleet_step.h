/* The C interface of the native step: what `library.py` declares through ctypes, field by field.
 *
 * Everything is a plain pointer or a fixed-width integer. No function but wf_stepper_new and wf_map allocates after wf_engine_new, and none throws; an
 * engine keeps the model's weights, its rotations and the KV arena, and no other argument longer than a call. It
 * serves one thread at a time: ctypes releases the interpreter's lock. Functions that return int return a
 * wf_status.
 *
 * By noun: memory.c; weights.c packs matrices; engine.c what an engine holds; step.c the order of a step; stepper.c
 * its two halves; attention.c which thread attends to what; pool.c the threads. kernels.h declares the tables that
 * levels.c lists and levels/ compiles, each file with its own flags, from pairs.inc and int8.inc with tiles.inc
 * (products), amx.inc and tile_registers.h (those of tile registers), panels.inc (weights), projection.inc,
 * attention.inc, rows.inc and sampler.inc. vectors.h has sixteen lanes on both instruction sets, int8_layout.h the shape
 * of 8-bit weights. Other code of one processor: intrinsics in int8.inc, pairs.inc, attention.inc, amx.inc and pool.c,
 * what is asked of processor and system in levels.c.
 */
#ifndef WARMFLEET_STEP_H
#define WARMFLEET_STEP_H

#include <stdint.h>

#define WF_LANES 16          /* outputs of a weight panel, tokens of a KV group */
/* Context tokens that are reduced together; partitions merge left to right. While one is computed the next one's keys
 * are fetched: with a KV head's keys and values of one they have to fit into a core's second-level cache. */
#define WF_PARTITION 256
#define WF_MAX_ROWS 256      /* rows of the model that one pass computes */

/* Of weights. */
enum wf_format { WF_WEIGHTS_BF16 = 0, WF_WEIGHTS_F32 = 1, WF_WEIGHTS_INT8 = 2, WF_FORMATS = 3 };
/* Of keys and values. */
enum wf_element { WF_BF16 = 0, WF_F32 = 1, WF_ELEMENTS = 2 };
/* Ascending: of those that run, the highest is taken, then those below. */
enum wf_level { WF_AVX2 = 0, WF_AVX512 = 1, WF_AVX512_BF16 = 2, WF_AMX_BF16 = 3, WF_LEVELS = 4 };
enum wf_status {
    WF_OK = 0, WF_BAD_ARGUMENT = -1, WF_NO_MEMORY = -2, WF_NO_THREAD = -3, WF_NO_LEVEL = -4, WF_NO_PERMISSION = -5
};

/* Weights of one layer. Matrices are packed by wf_pack, vectors are float32; absent ones are NULL. */
typedef struct {
    const float *input_norm, *mlp_norm;
    const float *query_norm, *key_norm;     /* [head_dim] */
    const void *qkv, *output, *gate_up, *down;
    const float *qkv_bias, *output_bias;
} wf_layer;

typedef struct {
    int32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary;
    int32_t window_tokens;                  /* 0: a token sees all before it */
    int32_t positions;                      /* rows of cosine and sine */
    int32_t weight_format, kv_element, level, threads;
    float norm_epsilon;
    int32_t block_size_tokens, total_blocks;
    int64_t block_stride_bytes, layer_stride_bytes, value_stride_bytes, head_stride_bytes;
    void *arena;
    const float *cosine, *sine;             /* [positions, head_dim / 2] */
    const void *embedding, *head;           /* packed; the same where they are tied */
    const float *final_norm;
    const wf_layer *layer;
} wf_model;

/* One step. Row r is token token_ids[r] at positions[r], of chunk row_chunks[r]; rows of a chunk are
 * consecutive, with consecutive positions. */
typedef struct {
    int32_t rows, chunks;
    const int32_t *token_ids, *positions, *row_chunks;
    const int32_t *block_ids;               /* the block tables of all chunks, one after the other */
    const int64_t *first_block;             /* [chunks + 1] offsets into block_ids */
    int32_t wanted;                         /* rows whose final hidden state is wanted */
    const int32_t *wanted_rows;             /* ascending */
    float *hidden;                          /* [wanted, hidden], before the final norm */
    uint8_t *finite;                        /* [rows] */
    float *trace;                           /* [layers + 1, rows, hidden], or NULL */
} wf_step_arguments;

typedef struct wf_engine wf_engine;

/* Whether this processor runs a level, and the level computes with weights of a format and keys and values of an
 * element. */
int wf_level_computes(int level, int format, int element);
/* Ask the system to let this process, all threads of it until it ends, use a level's registers; whether it does. */
int wf_request_permission(int level);
/* Bytes of a packed matrix of `outputs` x `inputs`. With `interleaved` the two halves of the outputs (gate and up)
 * alternate panel by panel. */
int64_t wf_packed_bytes(int format, int64_t outputs, int64_t inputs, int interleaved);
/* Some of its outputs, `rows` of them from `first` on, into the zeroed memory of the whole, `packed`. Int8 has `scales`,
 * float16, one for each 32 inputs of an output. Threads may pack different rows at the same time. */
void wf_pack(int format, const void *matrix, const uint16_t *scales, int64_t first, int64_t rows, int64_t outputs,
             int64_t inputs, int interleaved, void *packed);
/* Anonymous zeroed memory in huge pages where the system has them; NULL if there is none. */
void *wf_map(int64_t bytes);
void wf_unmap(void *address, int64_t bytes);

int wf_engine_new(const wf_model *model, wf_engine **engine);
void wf_engine_free(wf_engine *engine);
int wf_step(wf_engine *engine, const wf_step_arguments *step);
/* Logits, float32 [rows, vocabulary], of final hidden states, [rows, hidden]. */
int wf_logits(wf_engine *engine, const float *hidden, int32_t rows, float *logits);

/* How a row's token is chosen. */
typedef struct {
    double top_p, min_p;                    /* 1 and 0: no limit */
    uint64_t seed;
    float temperature;                      /* 0: the best one */
    int32_t top_k;                          /* 0: no limit */
    uint32_t output_index;
    uint32_t reserved;
} wf_sampling;

/* One token id per row of logits, [rows, columns], at most the model's vocabulary; -1 where not finite. */
int wf_sample(wf_engine *engine, const float *logits, int32_t rows, int32_t columns,
              const wf_sampling *sampling, int32_t *token_ids);

#endif
