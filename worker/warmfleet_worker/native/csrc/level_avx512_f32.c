#define WF_NAME wf_avx512_f32
#define WF_USE_AVX512
#define WF_WEIGHTS_F32
#include "kernels.inc"
