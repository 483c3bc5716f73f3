#define WF_USE_AVX512
#define WF_ELEMENT_F32
#define WF_PROJECTION wf_avx512_f32_weights
#define WF_ATTENTION wf_avx512_f32_attention
#include "../pairs.inc"
#include "../projection.inc"
#include "../attention.inc"
