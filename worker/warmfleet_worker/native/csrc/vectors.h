/* Sixteen float32, or eight integers of 64 bits, in one AVX-512 register or two AVX2 ones, and what the kernels do with
 * them.
 *
 * Every operation is one that both instruction sets define lane by lane, so that a kernel written with these
 * has one reduction order; fused multiply-adds are written as such (the files are compiled with
 * -ffp-contract=off).
 */
#ifndef WARMFLEET_VECTORS_H
#define WARMFLEET_VECTORS_H

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define WF_INLINE static inline __attribute__((always_inline))
enum { WF_VECTOR = 16 };
/* Rows of a tile: with one panel (AVX2) or two, their accumulators stay in registers. AVX2 has 16: twelve hold sums,
 * two a half of a pair of inputs, one an activation. A register of AMX holds sixteen rows. */
#ifdef WF_TILE_REGISTERS
enum { TILE_ROWS = 16 };
#elif defined(WF_USE_AVX512)
enum { TILE_ROWS = 12 };
#else
enum { TILE_ROWS = 6 };
#endif
#ifndef WF_USE_AVX512
/* What is behind `pointer` is read again: where the compiler kept activations for all panels of a tile, they took the
 * registers of its sums, which went to memory and back for each pair of inputs. */
#define READ_AGAIN(pointer) __asm__ volatile("" : "+r"(pointer))
#endif
enum { MOST_PANELS = 4 };   /* of a tile */

#ifdef WF_USE_AVX512
typedef __m512 vec;
static inline vec v_zero(void) { return _mm512_setzero_ps(); }
static inline vec v_set(float x) { return _mm512_set1_ps(x); }
static inline vec v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
/* The second operand where either is NaN. */
static inline vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); }
static inline vec v_round(vec a) { return _mm512_roundscale_ps(a, 8); }
/* a where x >= limit or x is NaN, else 0. */
static inline vec v_zero_below(vec a, vec x, float limit) {
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ), _mm512_setzero_ps());
}
/* 2^n for whole n between -126 and 127. */
static inline vec v_exp2i(vec n) {
    __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}
/* The first `lanes` lanes of a, `other` in the rest. */
static inline vec v_first(vec a, int lanes, vec other) {
    return _mm512_mask_mov_ps(other, (__mmask16)(lanes >= 16 ? 0xffff : (1u << (lanes < 0 ? 0 : lanes)) - 1), a);
}
static inline void v_bf16_pair(const void *p, vec *low, vec *high) {
    __m512i w = _mm512_loadu_si512(p);
    *low = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    *high = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
}
#else
typedef struct { __m256 a, b; } vec;
static inline vec v_zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline vec v_set(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vec v_load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void v_store(float *p, vec x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline vec v_add(vec x, vec y) { return (vec){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline vec v_sub(vec x, vec y) { return (vec){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline vec v_mul(vec x, vec y) { return (vec){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline vec v_div(vec x, vec y) { return (vec){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline vec v_fma(vec x, vec y, vec z) {
    return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline vec v_max(vec x, vec y) { return (vec){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline vec v_min(vec x, vec y) { return (vec){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline vec v_round(vec x) { return (vec){_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
static inline vec v_zero_below(vec a, vec x, float limit) {
    __m256 l = _mm256_set1_ps(limit);
    return (vec){_mm256_andnot_ps(_mm256_cmp_ps(x.a, l, _CMP_LT_OQ), a.a),
                 _mm256_andnot_ps(_mm256_cmp_ps(x.b, l, _CMP_LT_OQ), a.b)};
}
static inline __m256 v_exp2i_half(__m256 n) {
    __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
static inline vec v_exp2i(vec n) { return (vec){v_exp2i_half(n.a), v_exp2i_half(n.b)}; }
static inline __m256 v_first_half(__m256 a, int lanes, __m256 other) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), lane);
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(inside));
}
static inline vec v_first(vec x, int lanes, vec other) {
    return (vec){v_first_half(x.a, lanes, other.a), v_first_half(x.b, lanes - 8, other.b)};
}
/* Of sixteen pairs of bfloat16: their first and their second ones. */
static inline vec v_bf16_low(const void *p) {
    __m256i w = _mm256_loadu_si256(p), x = _mm256_loadu_si256((const __m256i *)p + 1);
    return (vec){_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x, 16))};
}
static inline vec v_bf16_high(const void *p) {
    __m256i w = _mm256_loadu_si256(p), x = _mm256_loadu_si256((const __m256i *)p + 1);
    __m256i mask = _mm256_set1_epi32((int)0xffff0000);
    return (vec){_mm256_castsi256_ps(_mm256_and_si256(w, mask)), _mm256_castsi256_ps(_mm256_and_si256(x, mask))};
}
#endif

/* Sixteen float16 as float32; and float32 rounded to nearest even, to int16. */
#ifdef WF_USE_AVX512
static inline vec v_float16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void v_store_int16(int16_t *p, vec x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}
#elif defined(__F16C__)
static inline vec v_float16(const void *p) {
    return (vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
static inline void v_store_int16(int16_t *p, vec x) {
    __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
#endif

/* Eight unsigned integers of 64 bits. */
enum { WIDE_LANES = 8 };
#ifdef WF_USE_AVX512
typedef __m512i wide;
static inline wide w_set(uint64_t x) { return _mm512_set1_epi64((long long)x); }
static inline wide w_load(const uint64_t *p) { return _mm512_loadu_si512(p); }
static inline void w_store(uint64_t *p, wide x) { _mm512_storeu_si512(p, x); }
static inline wide w_xor(wide x, wide y) { return _mm512_xor_si512(x, y); }
/* The products of the lower halves. */
static inline wide w_mul_lower(wide x, wide y) { return _mm512_mul_epu32(x, y); }
static inline wide w_upper(wide x) { return _mm512_srli_epi64(x, 32); }
/* The lower halves of x, and above them those of y. */
static inline wide w_pair(wide x, wide y) { return _mm512_mask_mov_epi32(x, 0xaaaa, _mm512_slli_epi64(y, 32)); }
/* Of each half the lesser. */
static inline wide w_min_halves(wide x, wide y) { return _mm512_min_epu32(x, y); }
#else
typedef struct { __m256i a, b; } wide;
static inline wide w_set(uint64_t x) {
    return (wide){_mm256_set1_epi64x((long long)x), _mm256_set1_epi64x((long long)x)};
}
static inline wide w_load(const uint64_t *p) {
    return (wide){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
static inline void w_store(uint64_t *p, wide x) {
    _mm256_storeu_si256((__m256i *)p, x.a);
    _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
static inline wide w_xor(wide x, wide y) { return (wide){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
static inline wide w_mul_lower(wide x, wide y) {
    return (wide){_mm256_mul_epu32(x.a, y.a), _mm256_mul_epu32(x.b, y.b)};
}
static inline wide w_upper(wide x) { return (wide){_mm256_srli_epi64(x.a, 32), _mm256_srli_epi64(x.b, 32)}; }
static inline wide w_pair(wide x, wide y) {
    return (wide){_mm256_blend_epi32(x.a, _mm256_slli_epi64(y.a, 32), 0xaa),
                  _mm256_blend_epi32(x.b, _mm256_slli_epi64(y.b, 32), 0xaa)};
}
static inline wide w_min_halves(wide x, wide y) {
    return (wide){_mm256_min_epu32(x.a, y.a), _mm256_min_epu32(x.b, y.b)};
}
#endif

/* Sum and maximum of all lanes, always in this order. */
static inline float v_sum(vec x) {
    float lane[16];
    v_store(lane, x);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}
static inline float v_maximum(vec x) {
    float lane[16];
    v_store(lane, x);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

/* e^x to 2 units in the last place; 0 below -87, infinity is not reached (x <= 0 in attention, and the
 * sigmoid's argument is cut). NaN stays NaN. Cephes' expf (Moshier 1989): reduction by ln 2 in two parts. */
static inline vec v_exp(vec x) {
    vec cut = v_max(v_set(-87.0f), v_min(v_set(88.0f), x));
    vec n = v_round(v_mul(cut, v_set(1.44269504088896341f)));
    vec r = v_fma(n, v_set(-0.693359375f), cut);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vec p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_add(v_fma(v_mul(r, r), p, r), v_set(1.0f));
    return v_zero_below(v_mul(p, v_exp2i(n)), x, -87.0f);
}

/* x = m 2^e with m in [sqrt(1/2), sqrt(2)), for normal x > 0. */
static inline void v_split(vec x, vec *mantissa, vec *exponent) {
    uint32_t bits[WF_VECTOR];
    float m[WF_VECTOR], e[WF_VECTOR];
    v_store((float *)bits, x);
    for (int i = 0; i < WF_VECTOR; i++) {
        /* 0x3f3504f3 is sqrt(1/2). */
        int32_t power = (int32_t)(bits[i] - 0x3f3504f3u) >> 23;
        uint32_t rest = bits[i] - ((uint32_t)power << 23);
        memcpy(&m[i], &rest, 4);
        e[i] = (float)power;
    }
    *mantissa = v_load(m);
    *exponent = v_load(e);
}
/* ln x to 2 units in the last place, for normal x > 0. Cephes' logf (Moshier 1989). */
static inline vec v_log(vec x) {
    vec m, e;
    v_split(x, &m, &e);
    vec r = v_sub(m, v_set(1.0f)), square = v_mul(r, r);
    vec p = v_set(7.0376836292e-2f);
    p = v_fma(p, r, v_set(-1.1514610310e-1f));
    p = v_fma(p, r, v_set(1.1676998740e-1f));
    p = v_fma(p, r, v_set(-1.2420140846e-1f));
    p = v_fma(p, r, v_set(1.4249322787e-1f));
    p = v_fma(p, r, v_set(-1.6668057665e-1f));
    p = v_fma(p, r, v_set(2.0000714765e-1f));
    p = v_fma(p, r, v_set(-2.4999993993e-1f));
    p = v_fma(p, r, v_set(3.3333331174e-1f));
    p = v_mul(v_mul(p, r), square);
    p = v_fma(e, v_set(-2.12194440e-4f), p);
    p = v_fma(square, v_set(-0.5f), p);
    return v_fma(e, v_set(0.693359375f), v_add(r, p));
}

/* Sixteen bfloat16, rounded to nearest even; NaN stays NaN. */
#ifdef WF_DOT_BF16
static inline void v_store_bf16(uint16_t *p, vec x) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}
#elif defined(WF_USE_AVX512)
static inline void v_store_bf16(uint16_t *p, vec x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}
#else
static inline __m256i v_round_half(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), nan);
}
static inline void v_store_bf16(uint16_t *p, vec x) {
    /* Packing works within halves of 128 bits: put their quarters in order. */
    __m256i packed = _mm256_packus_epi32(v_round_half(x.a), v_round_half(x.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
#endif

/* Sixteen of them as float32. */
static inline vec v_load_bf16(const uint16_t *p) {
    const __m256i halves = _mm256_loadu_si256((const __m256i *)p);
#ifdef WF_USE_AVX512
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#else
    __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(halves));
    __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(halves, 1));
    return (vec){_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
#endif
}

/* A sum is computed here and stays in its register. Otherwise the compiler put some into memory, and added whole
 * numbers, whose order is free, in another one. */
#ifdef WF_USE_AVX512
#define IN_REGISTER(sum) __asm__("" : "+v"(sum))
#else
#define IN_REGISTER(sum) __asm__("" : "+x"(sum))
#endif

static inline int at_most(int count, int limit) { return count < limit ? count : limit; }

/* What a product fetches into the second-level cache while it reads panels: with each line the one `ahead` bytes
 * further on, `behind` bytes less from line to line. */
typedef struct {
    int64_t ahead, behind;
} fetching;

enum { LINE_BYTES = 64 };

/* Lines anywhere that are fetched meanwhile: for the first pair of inputs of panel n of segment s that at
 * from[s * panels + n], for each further one that `step` bytes on. In float32, whose pairs take two lines, also the ones
 * `apart` elements after these. */
typedef struct {
    const uint8_t *const *from;
    int64_t step;
} fetching_lines;

/* Up to sixteen floats in a register; zeros after `count`. */
static inline vec load_some(const float *p, int count) {
    if (count >= WF_VECTOR) return v_load(p);
    float some[WF_VECTOR] = {0};
    memcpy(some, p, sizeof(float) * (size_t)count);
    return v_load(some);
}

/* The first `count` of them. */
static inline void store_some(float *p, vec x, int count) {
    if (count >= WF_VECTOR) {
        v_store(p, x);
        return;
    }
    float some[WF_VECTOR];
    v_store(some, x);
    memcpy(p, some, sizeof(float) * (size_t)count);
}

/* 1 / sqrt(mean square + epsilon): sixteen sums, then one. */
static inline float inverse_rms(const float *x, int count, float epsilon) {
    vec squares = v_zero();
    for (int k = 0; k < count; k += WF_VECTOR) {
        vec v = load_some(x + k, count - k);
        squares = v_fma(v, v, squares);
    }
    return 1.0f / sqrtf(v_sum(squares) / (float)count + epsilon);
}

#endif
