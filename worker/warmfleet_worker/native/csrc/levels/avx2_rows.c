#define WF_ROWS wf_avx2_rows
#include "../rows.inc"
