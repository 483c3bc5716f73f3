/* The instruction-set levels: which of them a processor runs, and the kernels of each. */
#define _GNU_SOURCE
#include "kernels.h"

#include <cpuid.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const wf_projection_kernels wf_avx2_bf16_weights, wf_avx2_f32_weights, wf_avx512_bf16_weights,
    wf_avx512_f32_weights, wf_units_bf16_weights, wf_amx_bf16_weights, wf_avx2_int8_weights, wf_avx512_int8_weights,
    wf_units_int8_weights;
extern const wf_attention_kernels wf_avx2_bf16_attention, wf_avx2_f32_attention, wf_avx512_bf16_attention,
    wf_avx512_f32_attention, wf_units_bf16_attention, wf_amx_bf16_attention;
extern const wf_row_kernels wf_avx2_rows, wf_avx512_rows;

/* The level that a processor with tile registers runs as well, what of it computes beside them, and the system's part. */
#ifdef WF_EMULATED_TILES
enum { BESIDE_TILES = WF_AVX2 };
#define BESIDE_TILES_INT8 wf_avx2_int8_weights
#define BESIDE_TILES_ROWS wf_avx2_rows
static int has_tiles(void) { return 1; }
static int tiles_are_permitted(void) { return 1; }
#else
enum { BESIDE_TILES = WF_AVX512_BF16, TILE_DATA = 18, GET_SUPPORTED = 0x1021, REQUEST_PERMISSION = 0x1023 };
#define BESIDE_TILES_INT8 wf_units_int8_weights
#define BESIDE_TILES_ROWS wf_avx512_rows
static int has_tiles(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    uint64_t supported = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return 0;
    return !syscall(SYS_arch_prctl, GET_SUPPORTED, &supported) && supported >> TILE_DATA & 1;
}
/* Not asked for before they are used: from then on the stacks of signals have to be larger. */
static int tiles_are_permitted(void) { return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA); }
#endif

const wf_level_kernels wf_levels[WF_LEVELS] = {
    [WF_AVX2] = {
        .projection = {
            [WF_WEIGHTS_BF16] = &wf_avx2_bf16_weights,
            [WF_WEIGHTS_F32] = &wf_avx2_f32_weights,
            [WF_WEIGHTS_INT8] = &wf_avx2_int8_weights,
        },
        .attention = {[WF_BF16] = &wf_avx2_bf16_attention, [WF_F32] = &wf_avx2_f32_attention},
        .row = &wf_avx2_rows,
    },
    [WF_AVX512] = {
        .projection = {
            [WF_WEIGHTS_BF16] = &wf_avx512_bf16_weights,
            [WF_WEIGHTS_F32] = &wf_avx512_f32_weights,
            [WF_WEIGHTS_INT8] = &wf_avx512_int8_weights,
        },
        .attention = {[WF_BF16] = &wf_avx512_bf16_attention, [WF_F32] = &wf_avx512_f32_attention},
        .row = &wf_avx512_rows,
    },
    [WF_AVX512_BF16] = {
        .projection = {[WF_WEIGHTS_BF16] = &wf_units_bf16_weights, [WF_WEIGHTS_INT8] = &wf_units_int8_weights},
        .attention = {[WF_BF16] = &wf_units_bf16_attention},
        .row = &wf_avx512_rows,
    },
    [WF_AMX_BF16] = {
        .projection = {[WF_WEIGHTS_BF16] = &wf_amx_bf16_weights, [WF_WEIGHTS_INT8] = &BESIDE_TILES_INT8},
        .attention = {[WF_BF16] = &wf_amx_bf16_attention},
        .row = &BESIDE_TILES_ROWS,
    },
};

int wf_request_permission(int level) { return level != WF_AMX_BF16 || tiles_are_permitted(); }

static int runs(int level) {
    unsigned a, b, c, d;
    if (level == WF_AMX_BF16) return runs(BESIDE_TILES) && has_tiles();
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    /* Conversions of float16; compilers do not agree on a name for it. */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return 0;
    if (level == WF_AVX2) return 1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return 0;
    if (level == WF_AVX512) return 1;
    return level == WF_AVX512_BF16 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

int wf_level_computes(int level, int format, int element) {
    if (level < 0 || level >= WF_LEVELS || format < 0 || format >= WF_FORMATS || element < 0 || element >= WF_ELEMENTS)
        return 0;
    return runs(level) && wf_levels[level].projection[format] && wf_levels[level].attention[element];
}
