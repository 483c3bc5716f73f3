/* The instruction-set levels: which of them a processor runs, and the kernels of each. */
#include "kernels.h"

#include <cpuid.h>
#include <stddef.h>

extern const wf_projection_kernels wf_avx2_bf16_weights, wf_avx2_f32_weights, wf_avx512_bf16_weights,
    wf_avx512_f32_weights, wf_units_bf16_weights, wf_avx2_int8_weights, wf_avx512_int8_weights, wf_units_int8_weights;
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
};

static int runs(int level) {
    unsigned a, b, c, d;
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
