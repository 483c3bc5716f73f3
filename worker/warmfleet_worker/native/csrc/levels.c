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
    wf_avx512_f32_attention, wf_units_bf16_attention;
extern const wf_row_kernels wf_avx2_rows, wf_avx512_rows;

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
        .projection = {[WF_WEIGHTS_BF16] = &wf_amx_bf16_weights},
#ifdef WF_EMULATED_TILES
        .attention = {[WF_BF16] = &wf_avx2_bf16_attention},
        .row = &wf_avx2_rows,
#else
        .attention = {[WF_BF16] = &wf_units_bf16_attention},
        .row = &wf_avx512_rows,
#endif
    },
};

enum { TILE_DATA = 18, GET_SUPPORTED = 0x1021, REQUEST_PERMISSION = 0x1023 };

/* Whether processor and system have tile registers. */
static int has_tiles(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    uint64_t supported = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return 0;
    return !syscall(SYS_arch_prctl, GET_SUPPORTED, &supported) && supported >> TILE_DATA & 1;
}

int wf_level_permitted(int level) {
#ifdef WF_EMULATED_TILES
    return level < WF_LEVELS;
#else
    /* Asked for by who uses it: from then on the stacks of signals have to be larger. */
    return level != WF_AMX_BF16 || !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#endif
}

static int runs(int level) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    /* Conversions of float16; compilers do not agree on a name for it. */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return 0;
    if (level == WF_AVX2) return 1;
#ifdef WF_EMULATED_TILES
    if (level == WF_AMX_BF16) return 1;
#endif
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return 0;
    if (level == WF_AVX512) return 1;
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni")) return 0;
    return level == WF_AVX512_BF16 || (level == WF_AMX_BF16 && has_tiles());
}

int wf_level_computes(int level, int format, int element) {
    if (level < 0 || level >= WF_LEVELS || format < 0 || format >= WF_FORMATS || element < 0 || element >= WF_ELEMENTS)
        return 0;
    return runs(level) && wf_levels[level].projection[format] && wf_levels[level].attention[element];
}
