#define WF_USE_AVX512
#define WF_PROJECTION wf_avx512_int8_weights
#include "../int8.inc"
#include "../projection.inc"
