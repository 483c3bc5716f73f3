#define WF_PROJECTION wf_avx2_int8_weights
#include "../int8.inc"
#include "../projection.inc"
