#define WF_ELEMENT_F32
#define WF_PROJECTION wf_avx2_f32_weights
#define WF_ATTENTION wf_avx2_f32_attention
#include "../pairs.inc"
#include "../projection.inc"
#include "../attention.inc"
