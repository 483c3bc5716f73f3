#define WF_NAME wf_avx512_bf16
#define WF_USE_AVX512
#include "kernels.inc"
