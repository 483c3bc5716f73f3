/* AMX's tile registers: eight matrices of up to sixteen rows of 64 bytes, and the sums of products of bfloat16 pairs
 * (Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS).
 * Instructions are written out, as compilers know them later than assemblers. With WF_EMULATED_TILES the registers are
 * memory, so that tests run what is written with them on any processor.
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
/* The numbers of registers are a part of the instruction. */
#define TILES_BEGIN(shapes) __asm__ volatile("ldtilecfg %0" ::"m"(*(shapes)))
#define TILES_END() __asm__ volatile("tilerelease")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, to, stride) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
/* c[m][n] += the sum over k of x[m][2k] w[k][2n], plus that of x[m][2k + 1] w[k][2n + 1]. */
#define TILE_ADD_PRODUCTS(c, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #c ::)
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

static inline void emulated_zero(int t) { memset(emulated.bytes[t], 0, sizeof emulated.bytes[t]); }

static inline void emulated_load(int t, const uint8_t *from, int64_t stride) {
    emulated_zero(t);
    for (int row = 0; row < emulated.shapes.rows[t]; row++)
        memcpy(emulated.bytes[t][row], from + row * stride, emulated.shapes.row_bytes[t]);
}

static inline void emulated_store(int t, uint8_t *to, int64_t stride) {
    for (int row = 0; row < emulated.shapes.rows[t]; row++)
        memcpy(to + row * stride, emulated.bytes[t][row], emulated.shapes.row_bytes[t]);
}

/* As the manual has it, and shapes that do not fit end the process here as well. Products are exact in float32. */
static inline void emulated_add_products(int c, int x, int w) {
    const tile_shapes *s = &emulated.shapes;
    if (s->palette != 1 || s->rows[c] != s->rows[x] || s->row_bytes[x] != 4 * s->rows[w] ||
        s->row_bytes[c] != s->row_bytes[w])
        __builtin_trap();
    for (int m = 0; m < emulated.shapes.rows[c]; m++)
        for (int n = 0; n < emulated.shapes.row_bytes[c] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < emulated.shapes.row_bytes[x] / 4; k++) {
                const uint8_t *of_x = &emulated.bytes[x][m][4 * k], *of_w = &emulated.bytes[w][k][4 * n];
                even += emulated_bf16(of_x) * emulated_bf16(of_w);
                odd += emulated_bf16(of_x + 2) * emulated_bf16(of_w + 2);
            }
            memcpy(&sum, &emulated.bytes[c][m][4 * n], 4);
            sum += even + odd;
            memcpy(&emulated.bytes[c][m][4 * n], &sum, 4);
        }
}

#define TILES_BEGIN(given) (emulated.shapes = *(given))
#define TILES_END() (void)0
#define TILE_ZERO(t) emulated_zero(t)
#define TILE_LOAD(t, from, stride) emulated_load(t, (const uint8_t *)(from), stride)
#define TILE_STORE(t, to, stride) emulated_store(t, (uint8_t *)(to), stride)
#define TILE_ADD_PRODUCTS(c, x, w) emulated_add_products(c, x, w)
#endif

#endif
