#define WF_NAME wf_avx2_bf16
#include "kernels.inc"
