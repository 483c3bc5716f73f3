/* bfloat16 by the tile registers of AMX. */
#define WF_TILE_REGISTERS
#ifndef WF_EMULATED_TILES
#define WF_USE_AVX512
#define WF_DOT_BF16
#endif
#define WF_PROJECTION wf_amx_bf16_weights
#define WF_ATTENTION wf_amx_bf16_attention
#include "../amx.inc"
#include "../projection.inc"
#include "../attention.inc"
