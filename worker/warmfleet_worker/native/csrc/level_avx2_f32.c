#define WF_NAME wf_avx2_f32
#define WF_WEIGHTS_F32
#include "kernels.inc"
