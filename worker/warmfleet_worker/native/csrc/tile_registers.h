/* AMX's tile registers: eight matrices of up to sixteen rows of 64 bytes, and the sums of products of bfloat16 pairs
 * (Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS).
 * Instructions are bytes, so that the assembler need not know them: where it fails there are no kernels at all. With
 * WF_EMULATED_TILES the registers are memory, so that tests run what is written with them on any processor.
 */
#ifndef WARMFLEET_TILE_REGISTERS_H
#define WARMFLEET_TILE_REGISTERS_H

#include <stdint.h>
#include <string.h>

enum { TILE_REGISTERS = 8, REGISTER_ROWS = 16, REGISTER_ROW_BYTES = 64 };

/* What LDTILECFG reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

_Static_assert(sizeof(tile_shapes) == 64, "as the instruction reads it");

#ifndef WF_EMULATED_TILES
/* Register numbers are a part of the bytes, addresses are in rax and rdx. */
#define TILES_BEGIN(shapes) /* ldtilecfg (%rax) */ \
    __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x00" ::"a"(shapes), "m"(*(shapes)))
#define TILES_END() /* tilerelease */ __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0" ::)
#define TILE_ZERO(t) /* tilezero */ __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0 + 8 * " #t ::)
#define TILE_LOAD(t, from, stride) /* tileloadd (%rax,%rdx), t */ \
    __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x04 + 8 * " #t ", 0x10" ::"a"(from), \
                     "d"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, to, stride) /* tilestored t, (%rax,%rdx) */ \
    __asm__ volatile(".byte 0xc4, 0xe2, 0x7a, 0x4b, 0x04 + 8 * " #t ", 0x10" ::"a"(to), \
                     "d"((int64_t)(stride)) : "memory")
/* c[m][n] += the sum over k of x[m][2k] w[k][2n], plus that of x[m][2k + 1] w[k][2n + 1]. */
#define TILE_ADD_PRODUCTS(c, x, w) /* tdpbf16ps w, x, c */ \
    __asm__ volatile(".byte 0xc4, 0xe2, 0x02 + 8 * (15 - " #w "), 0x5c, 0xc0 + 8 * " #c " + " #x ::)
#else
static __thread struct {
    tile_shapes shapes;
    uint8_t bytes[TILE_REGISTERS][REGISTER_ROWS][REGISTER_ROW_BYTES];
} emulated;

static inline float emulated_bf16(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, 2);
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* What the processor refuses ends the process here as well. */
static inline void emulated_require(int holds) {
    if (!holds) __builtin_trap();
}

static inline void emulated_begin(const tile_shapes *shapes) {
    emulated_require(shapes->palette == 1 && !shapes->start_row);
    for (int t = 0; t < 16; t++) {
        emulated_require(shapes->rows[t] <= REGISTER_ROWS && shapes->row_bytes[t] <= REGISTER_ROW_BYTES);
        emulated_require(!shapes->rows[t] == !shapes->row_bytes[t] && (t < TILE_REGISTERS || !shapes->rows[t]));
    }
    memset(&emulated, 0, sizeof emulated);
    emulated.shapes = *shapes;
}

static inline void emulated_zero(int t) {
    emulated_require(emulated.shapes.rows[t]);
    memset(emulated.bytes[t], 0, sizeof emulated.bytes[t]);
}

static inline void emulated_load(int t, const uint8_t *from, int64_t stride) {
    emulated_zero(t);
    for (int row = 0; row < emulated.shapes.rows[t]; row++)
        memcpy(emulated.bytes[t][row], from + row * stride, emulated.shapes.row_bytes[t]);
}

static inline void emulated_store(int t, uint8_t *to, int64_t stride) {
    emulated_require(emulated.shapes.rows[t]);
    for (int row = 0; row < emulated.shapes.rows[t]; row++)
        memcpy(to + row * stride, emulated.bytes[t][row], emulated.shapes.row_bytes[t]);
}

/* As the manual has it, but that numbers below the normal ones are 0 there. The product of two bfloat16 is exact in
 * float32, so adding it is the fused operation. */
static inline void emulated_add_products(int c, int x, int w) {
    const tile_shapes *s = &emulated.shapes;
    emulated_require(c != x && c != w && x != w && s->rows[c] && s->rows[c] == s->rows[x]);
    emulated_require(s->row_bytes[x] == 4 * s->rows[w] && s->row_bytes[c] == s->row_bytes[w]);
    for (int m = 0; m < s->rows[c]; m++)
        for (int n = 0; n < s->row_bytes[c] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < s->row_bytes[x] / 4; k++) {
                const uint8_t *of_x = &emulated.bytes[x][m][4 * k], *of_w = &emulated.bytes[w][k][4 * n];
                even += emulated_bf16(of_x) * emulated_bf16(of_w);
                odd += emulated_bf16(of_x + 2) * emulated_bf16(of_w + 2);
            }
            memcpy(&sum, &emulated.bytes[c][m][4 * n], 4);
            sum += even + odd;
            memcpy(&emulated.bytes[c][m][4 * n], &sum, 4);
        }
}

#define TILES_BEGIN(shapes) emulated_begin(shapes)
#define TILES_END() memset(&emulated, 0, sizeof emulated)
#define TILE_ZERO(t) emulated_zero(t)
#define TILE_LOAD(t, from, stride) emulated_load(t, (const uint8_t *)(from), stride)
#define TILE_STORE(t, to, stride) emulated_store(t, (uint8_t *)(to), stride)
#define TILE_ADD_PRODUCTS(c, x, w) emulated_add_products(c, x, w)
#endif

#endif
