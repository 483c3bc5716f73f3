#define WF_NAME wf_avx512_bf16_bf16
#define WF_USE_AVX512
#define WF_DOT_BF16
#include "kernels.inc"
