/* Vectors, elementary functions, and matrices in panels of NR columns, [panel][row][NR], as product.h reads them. For next_word.c.

   Written for gcc and clang, whose vectors become the processor's own. */

#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VL 16
#else
#define VL 8
#endif
#define MR 4
#define NR (3 * VL)

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define V(p) (*(vec *)(p))
#define CV(p) (*(const vec *)(p))
#define INLINE static inline __attribute__((always_inline))

static long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

/* ---- elementary functions ---- */

INLINE vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }
/* All three keep a NaN in x or y, the last argument. */
#if defined(__AVX__) && VL == 8
INLINE vec larger(vec x, vec y) { return __builtin_ia32_maxps256(x, y); }
INLINE vec smaller(vec x, vec y) { return __builtin_ia32_minps256(x, y); }
#else
INLINE vec larger(vec x, vec y) { return pick(x > y, x, y); }
INLINE vec smaller(vec x, vec y) { return pick(x < y, x, y); }
#endif
INLINE vec at_least(vec x, float low) { return larger(low - (vec){0}, x); }
INLINE vec at_most(vec x, float high) { return smaller(high - (vec){0}, x); }

/* The functions below take a few vectors at a time and each step for all of them: one after the other they would be a chain of dependent
   operations each, longer than what a core looks ahead. */
#define EACH for (int k = 0; k < count; k++)

/* x = n ln 2 + r with |r| <= ln(2) / 2: x becomes r, and n has n in its lowest bits. What ln 2 is off by times n is less than the rounding
   of x. */
INLINE void reduce(vec *x, ivec *n, const int count) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vec whole[4];
    EACH whole[k] = x[k] * 1.44269504f + magic;
    EACH n[k] = (ivec)whole[k], whole[k] -= magic;
    EACH x[k] -= whole[k] * 0.69314718f;
}

/* The sum of r^i / (i + 2)! for i from 0 to 5. Of exp(r) - 1 - r, which is r^2 times as much, less than 6e-9 is missing. */
INLINE void series(const vec *r, vec *p, const int count) {
    EACH p[k] = r[k] * (1.0f / 5040) + 1.0f / 720;
    EACH p[k] = p[k] * r[k] + 1.0f / 120;
    EACH p[k] = p[k] * r[k] + 1.0f / 24;
    EACH p[k] = p[k] * r[k] + 1.0f / 6;
    EACH p[k] = p[k] * r[k] + 0.5f;
}

INLINE void exponentials(vec *x, const int count) {
    vec p[4];
    ivec n[4];
    EACH x[k] = at_most(at_least(x[k], -87.0f), 88.0f);
    reduce(x, n, count);
    series(x, p, count);
    EACH p[k] = p[k] * x[k] + 1.0f;
    EACH p[k] = p[k] * x[k] + 1.0f;
    EACH x[k] = (vec)((ivec)p[k] + (n[k] << 23));
}

INLINE void sigmoids(vec *x, const int count) {
    EACH x[k] = -x[k];
    exponentials(x, count);
    EACH x[k] = 1.0f / (1.0f + x[k]);
}

/* By exp(2 x) - 1, which loses nothing where x is small. */
INLINE vec hyperbolic_tangent(vec x) {
    vec p;
    ivec n;
    x = 2.0f * at_most(at_least(x, -10.0f), 10.0f);
    reduce(&x, &n, 1);
    series(&x, &p, 1);
    vec power = (vec)((n << 23) + 0x3f800000);
    vec less_one = power * (p * x * x + x) + (power - 1.0f);
    return less_one / (less_one + 2.0f);
}

/* ---- rearranging ---- */

#define TOGETHER 8 /* rows that are rearranged at a time, so that lines of memory are read and written whole */

/* rows x columns, row by row, into panels of rows_up rows; gates > 1 rounds each of as many equal parts of the columns up to whole
   panels. Panels are rows_p rows apart, and what is added is zero. */
static void to_panels(const float *from, long rows, long rows_up, long columns, long gates, float *panels, long rows_p) {
    long part = columns / gates, part_p = up(part, NR);
    for (long first = 0; first < rows_up; first += TOGETHER)
        for (long g = 0; g < gates; g++)
            for (long p = 0; p < part_p / NR; p++) {
                long width = part - p * NR < NR ? part - p * NR : NR;
                float *to = panels + (g * (part_p / NR) + p) * rows_p * NR;
                for (long r = first; r < rows_up && r < first + TOGETHER; r++) {
                    const float *row = from + r * columns + g * part + p * NR;
                    if (r < rows && width == NR) {
                        memcpy(to + r * NR, row, sizeof(float) * NR);
                        continue;
                    }
                    memset(to + r * NR, 0, sizeof(float) * NR);
                    if (r < rows) memcpy(to + r * NR, row, sizeof(float) * width);
                }
            }
}

/* update = from - panels, the inverse of `to_panels`. */
static void difference(const float *from, const float *panels, long rows, long columns, long gates, long rows_p,
                       float *update) {
    long part = columns / gates, part_p = up(part, NR);
    for (long first = 0; first < rows; first += TOGETHER)
        for (long g = 0; g < gates; g++)
            for (long p = 0; p < part_p / NR; p++) {
                long width = part - p * NR < NR ? part - p * NR : NR;
                const float *now = panels + (g * (part_p / NR) + p) * rows_p * NR;
                for (long r = first; r < rows && r < first + TOGETHER; r++) {
                    long place = r * columns + g * part + p * NR;
                    if (width == NR)
                        for (long j = 0; j < NR; j += VL) V(update + place + j) = CV(from + place + j) - CV(now + r * NR + j);
                    else
                        for (long j = 0; j < width; j++) update[place + j] = from[place + j] - now[r * NR + j];
                }
            }
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#define PAIR __builtin_shufflevector

/* 4 rows by 4 columns, rows NR apart. */
INLINE void transpose_four(const float *from, float *to) {
    four a = *(const four *)from, b = *(const four *)(from + NR);
    four c = *(const four *)(from + 2 * NR), d = *(const four *)(from + 3 * NR);
    four low = PAIR(a, b, 0, 4, 1, 5), high = PAIR(a, b, 2, 6, 3, 7);
    four low_2 = PAIR(c, d, 0, 4, 1, 5), high_2 = PAIR(c, d, 2, 6, 3, 7);
    *(four *)to = PAIR(low, low_2, 0, 1, 4, 5), *(four *)(to + NR) = PAIR(low, low_2, 2, 3, 6, 7);
    *(four *)(to + 2 * NR) = PAIR(high, high_2, 0, 1, 4, 5), *(four *)(to + 3 * NR) = PAIR(high, high_2, 2, 3, 6, 7);
}

/* Panels of an (NR a) x (NR b) matrix, source panels `apart` from each other, into panels of its transpose. */
static void transpose(const float *from, long rows_p, long panels, long apart, float *to) {
    for (long p = 0; p < panels; p++)
        for (long q = 0; q < rows_p / NR; q++) {
            const float *block = from + p * apart + q * NR * NR;
            float *into = to + (q * panels + p) * NR * NR;
            for (long j = 0; j < NR; j += 4)
                for (long i = 0; i < NR; i += 4) transpose_four(block + i * NR + j, into + j * NR + i);
        }
}

/* (length, width), row by row, into [width / MR][length][MR]. */
static void transpose_tiles(const float *from, long length, long width, float *to) {
    for (long m = 0; m < width; m += MR)
        for (long k = 0; k < length; k++, to += MR) memcpy(to, from + k * width + m, sizeof(float) * MR);
}

/* (length, width), row by row, into panels; sums[width] of each column besides. */
static void rows_to_panels(const float *from, long length, long width, float *to, float *sums) {
    memset(sums, 0, sizeof(float) * width);
    for (long first = 0; first < length; first += TOGETHER)
        for (long p = 0; p < width; p += NR) {
            vec s0 = CV(sums + p), s1 = CV(sums + p + VL), s2 = CV(sums + p + 2 * VL);
            for (long k = first; k < length && k < first + TOGETHER; k++) {
                const float *row = from + k * width + p;
                float *into = to + p * length + k * NR;
                vec r0 = CV(row), r1 = CV(row + VL), r2 = CV(row + 2 * VL);
                s0 += r0, s1 += r1, s2 += r2;
                V(into) = r0, V(into + VL) = r1, V(into + 2 * VL) = r2;
            }
            V(sums + p) = s0, V(sums + p + VL) = s1, V(sums + p + 2 * VL) = s2;
        }
}
