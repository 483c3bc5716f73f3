#define WF_USE_AVX512
#define WF_ROWS wf_avx512_rows
#include "../rows.inc"
