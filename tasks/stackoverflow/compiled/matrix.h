/* Matrices in panels of NR columns, and the one product that reads them; PACKING.md draws the layouts.

   For gcc and clang, whose vector extensions become the processor's own instructions. Sums are taken in a fixed order: the same input
   gives the same bits on every thread. */

#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VL 16
#define ONCE(p) (*(const volatile vec *)(p)) /* gcc would read it again for each of its uses, though 32 registers have room */
#else
#define VL 8
#define ONCE(p) CV(p)
#endif
#define MR 4         /* rows of a tile */
#define NV 3         /* vectors of a panel's row */
#define NR (NV * VL) /* columns of a panel */

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define V(p) (*(vec *)(p))
#define CV(p) (*(const vec *)(p))
#define INLINE static inline __attribute__((always_inline))

static long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }
static long least(long a, long b) { return a < b ? a : b; }

/* ---- elementary functions; a NaN in x stays one ---- */

INLINE vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

INLINE vec clamp(vec x, float low, float high) {
    vec least = low - (vec){0}, most = high - (vec){0};
    x = pick(x < least, least, x);
    return pick(x > most, most, x);
}

/* x = n ln 2 + r with |r| <= ln(2) / 2. Returns exp(r) - 1 - r over r^2, of which less than 6e-9 is missing. */
INLINE vec reduce(vec x, vec *r, ivec *n) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vec whole = x * 1.44269504f + magic;
    *n = (ivec)whole;
    *r = x - (whole - magic) * 0.69314718f;
    vec p = *r * (1.0f / 5040) + 1.0f / 720;
    p = p * *r + 1.0f / 120;
    p = p * *r + 1.0f / 24;
    p = p * *r + 1.0f / 6;
    return p * *r + 0.5f;
}

INLINE vec exponential(vec x) {
    vec r, p;
    ivec n;
    p = reduce(clamp(x, -87.0f, 88.0f), &r, &n);
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (vec)((ivec)p + (n << 23));
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* By exp(2 x) - 1, which loses nothing where x is small. */
INLINE vec hyperbolic_tangent(vec x) {
    vec r, p;
    ivec n;
    p = reduce(2.0f * clamp(x, -10.0f, 10.0f), &r, &n);
    vec power = (vec)((n << 23) + 0x3f800000);
    vec less_one = power * (p * r * r + r) + (power - 1.0f);
    return less_one / (less_one + 2.0f);
}

/* ---- matrices ---- */

/* A weight, as Keras has it rows x columns; each of `parts` equal parts of its columns (an LSTM's gates) is rounded up to whole panels,
   and the rows to whole panels of the transpose. The padding is zero and stays zero. */
typedef struct {
    long rows, columns, parts, rows_p, columns_p;
    float *panels, *transposed; /* [columns_p / NR][rows_p][NR], [rows_p / NR][columns_p][NR]; a bias has no transpose */
} matrix;

static matrix sized(long rows, long columns, long parts) {
    return (matrix){rows, columns, parts, rows == 1 ? 1 : up(rows, NR), parts * up(columns / parts, NR), 0, 0};
}

/* The columns from j on that lie in one part and one panel: how many, and in *at where they begin in row 0. */
static long run_from(const matrix *w, long j, long *at) {
    long part = w->columns / w->parts, to = j / part * up(part, NR) + j % part;
    *at = to / NR * w->rows_p * NR + to % NR;
    return least(part - j % part, NR - to % NR);
}

/* From Keras's layout, row by row. */
static void pack(matrix *w, const float *from) {
    memset(w->panels, 0, sizeof(float) * w->rows_p * w->columns_p);
    for (long j = 0, at, run; j < w->columns; j += run) {
        run = run_from(w, j, &at);
        for (long i = 0; i < w->rows; i++)
            memcpy(w->panels + at + i * NR, from + i * w->columns + j, sizeof(float) * run);
    }
}

/* update = from - w, in Keras's layout. */
static void unpack_difference(const matrix *w, const float *from, float *update) {
    for (long j = 0, at, run; j < w->columns; j += run) {
        run = run_from(w, j, &at);
        for (long i = 0; i < w->rows; i++)
            for (long k = 0; k < run; k++) {
                long place = i * w->columns + j + k;
                update[place] = from[place] - w->panels[at + i * NR + k];
            }
    }
}

static void transpose(const matrix *w) {
    for (long p = 0; p < w->columns_p / NR; p++)
        for (long q = 0; q < w->rows_p / NR; q++) {
            const float *from = w->panels + (p * w->rows_p + q * NR) * NR;
            float *to = w->transposed + (q * w->columns_p + p * NR) * NR;
            for (long j = 0; j < NR; j++)
                for (long i = 0; i < NR; i++) to[j * NR + i] = from[i * NR + j];
        }
}

/* (length, width), row by row, into [width / MR][length][MR]: the left factor of a gradient. */
static void pack_columns(const float *from, long length, long width, float *to) {
    for (long m = 0; m < width; m += MR)
        for (long k = 0; k < length; k++, to += MR) memcpy(to, from + k * width + m, sizeof(float) * MR);
}

/* (length, width), row by row, into panels [width / NR][length][NR]: the right factor of a gradient; and the sum of each column. */
static void pack_rows(const float *from, long length, long width, float *to, float *sums) {
    for (long p = 0; p < width; p += NR) {
        vec s[NV] = {{0}};
        for (long k = 0; k < length; k++, to += NR)
            for (int v = 0; v < NV; v++) {
                vec x = CV(from + k * width + p + v * VL);
                V(to + v * VL) = x, s[v] += x;
            }
        for (int v = 0; v < NV; v++) V(sums + p + v * VL) = s[v];
    }
}

/* ---- the product ---- */

/* Element (i, k) is at data[i / MR * tile + i % MR * row + k * step]. */
typedef struct {
    const float *data;
    long tile, row, step;
} left;

static left by_rows(const float *data, long width) { return (left){data, MR * width, width, 1}; }
/* As `pack_columns` writes it, without the first rows. */
static left by_columns(const float *data, long length, long first) {
    return (left){data + first * MR, length * MR, 1, MR};
}

/* Element (i, j) is at data[j / NR * panel + i * row + j % NR]. */
typedef struct {
    float *data;
    long row, panel;
} result;

/* One tile, MR rows by NR columns, of to = before + alpha a b, or a b + bias where before is NULL. The sums stay in registers. */
INLINE void tile(long depth, const float *a, long row, const long step, const float *b, float *to, const float *before,
                 long to_row, float alpha, const float *bias) {
    vec sum[MR][NV] = {{{0}}};
    for (long k = 0; k < depth; k++, a += step, b += NR) {
        vec of_b[NV];
        for (int v = 0; v < NV; v++) of_b[v] = ONCE(b + v * VL);
        for (int i = 0; i < MR; i++)
            for (int v = 0; v < NV; v++) sum[i][v] += a[i * row] * of_b[v];
    }
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < NV; v++) {
            float *at = to + i * to_row + v * VL;
            if (before)
                V(at) = CV(before + i * to_row + v * VL) + alpha * sum[i][v];
            else
                V(at) = bias ? (vec)(sum[i][v] + CV(bias + v * VL)) : sum[i][v];
        }
}

#define NEAR_DEPTH 168 /* rows of a panel that fit the first-level cache */

/* c (m rows, a multiple of MR, and `panels` panels) = before + alpha a b, or a b + bias where `before` is NULL; bias may be NULL then.
   `before` is laid out as c and may be c. b's panels are b_panel apart.

   A part of `a` stays in the second-level cache while panels of b pass by, a part of each in the first. */
static void multiply(long m, long depth, long panels, left a, const float *b, long b_panel, result c, const float *before,
                     float alpha, const float *bias) {
    int gradient = a.step == MR;
    long rows = gradient ? NEAR_DEPTH : m, part = gradient ? depth : m > 32 ? NEAR_DEPTH : 4 * NEAR_DEPTH;
    for (long first = 0; first < m; first += rows)
        for (long k = 0; k < depth; k += part)
            for (long p = 0; p < panels; p++) {
                const float *from = b + p * b_panel + k * NR, *with = bias ? bias + p * NR : 0;
                for (long i = first; i < least(m, first + rows); i += MR) {
                    long place = p * c.panel + i * c.row, now = least(depth - k, part);
                    const float *at = a.data + i / MR * a.tile + k * a.step;
                    const float *onto = k ? c.data + place : before ? before + place : 0;
                    if (gradient)
                        tile(now, at, 1, MR, from, c.data + place, onto, c.row, alpha, with);
                    else
                        tile(now, at, a.row, 1, from, c.data + place, onto, c.row, alpha, with);
                }
            }
}
