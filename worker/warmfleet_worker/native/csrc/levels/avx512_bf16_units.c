/* bfloat16 by the units of the level AVX-512-BF16. */
#define WF_USE_AVX512
#define WF_DOT_BF16
#define WF_PROJECTION wf_units_bf16_weights
#define WF_ATTENTION wf_units_bf16_attention
#include "../pairs.inc"
#include "../projection.inc"
#include "../attention.inc"
