#define WF_PROJECTION wf_avx2_bf16_weights
#define WF_ATTENTION wf_avx2_bf16_attention
#include "../pairs.inc"
#include "../projection.inc"
#include "../attention.inc"
