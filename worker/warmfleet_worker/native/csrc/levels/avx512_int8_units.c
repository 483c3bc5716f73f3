/* 16-bit products by the units of the level AVX-512-BF16. */
#define WF_USE_AVX512
#define WF_DOT_INT16
#define WF_PROJECTION wf_units_int8_weights
#include "../int8.inc"
#include "../projection.inc"
