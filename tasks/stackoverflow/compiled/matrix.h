/* Matrices that are stored in panels (groups of NR columns), and the matrix product that reads them. PACKING.md draws the layouts.

   The code uses the vector extensions of gcc and clang. Sums are computed in a fixed order, so that the same input gives bitwise
   identical results on every thread. */

#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VL 16
#define ONCE(p) (*(const volatile vec *)(p)) /* volatile, or else gcc would read the vector from memory at each use */
#else
#define VL 8
#define ONCE(p) CV(p)
#endif
#define MR 4         /* rows of a tile, the part of a result that stays in registers */
#define NV 3         /* vectors in a row of a panel */
#define NR (NV * VL) /* columns of a panel */

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define V(p) (*(vec *)(p))
#define CV(p) (*(const vec *)(p))
#define INLINE static inline __attribute__((always_inline))

static long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }
static long least(long a, long b) { return a < b ? a : b; }

/* ---- Elementary functions. If x is NaN, so is the result. ---- */

INLINE vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

INLINE vec clamp(vec x, float low, float high) {
    vec least = low - (vec){0}, most = high - (vec){0};
    x = pick(x < least, least, x);
    return pick(x > most, most, x);
}

/* Splits x into n ln 2 + r with |r| <= ln(2) / 2, and returns (exp(r) - 1 - r) / r^2 with an error below 6e-9. */
INLINE vec reduce(vec x, vec *r, ivec *n) {
    const float magic = 12582912.0f; /* 1.5 * 2^23; adding this number to a float rounds the float to an integer */
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

/* Computes tanh from exp(2 x) - 1, which is accurate for small x too. */
INLINE vec hyperbolic_tangent(vec x) {
    vec r, p;
    ivec n;
    p = reduce(2.0f * clamp(x, -10.0f, 10.0f), &r, &n);
    vec power = (vec)((n << 23) + 0x3f800000);
    vec less_one = power * (p * r * r + r) + (power - 1.0f);
    return less_one / (less_one + 2.0f);
}

/* ---- Matrices ---- */

/* A weight of the model, which has the shape rows x columns in Keras. Its columns are `parts` parts of the same size (the four gates of
   an LSTM, otherwise one part). Each part is padded with zeros to whole panels, and the rows to whole panels of the transpose. The
   padding stays zero. */
typedef struct {
    long rows, columns, parts, rows_p, columns_p;
    float *panels, *transposed; /* shapes [columns_p / NR][rows_p][NR] and [rows_p / NR][columns_p][NR]; a bias has no transpose */
} matrix;

static matrix sized(long rows, long columns, long parts) {
    return (matrix){rows, columns, parts, rows == 1 ? 1 : up(rows, NR), parts * up(columns / parts, NR), 0, 0};
}

/* Returns how many columns from column j on lie in the same part and the same panel. *at is where they begin in row 0. */
static long run_from(const matrix *w, long j, long *at) {
    long part = w->columns / w->parts, to = j / part * up(part, NR) + j % part;
    *at = to / NR * w->rows_p * NR + to % NR;
    return least(part - j % part, NR - to % NR);
}

/* Copies a weight from Keras's layout, row by row, to panels. */
static void pack(matrix *w, const float *from) {
    memset(w->panels, 0, sizeof(float) * w->rows_p * w->columns_p);
    for (long j = 0, at, run; j < w->columns; j += run) {
        run = run_from(w, j, &at);
        for (long i = 0; i < w->rows; i++)
            memcpy(w->panels + at + i * NR, from + i * w->columns + j, sizeof(float) * run);
    }
}

/* Computes update = from - w, where `from` and `update` are in Keras's layout. */
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

/* Copies a matrix (length, width), which is stored row by row, to the layout [width / MR][length][MR]. In it, the matrix is the left
   factor of a weight's gradient. */
static void pack_columns(const float *from, long length, long width, float *to) {
    for (long m = 0; m < width; m += MR)
        for (long k = 0; k < length; k++, to += MR) memcpy(to, from + k * width + m, sizeof(float) * MR);
}

/* Copies a matrix (length, width), which is stored row by row, to panels [width / NR][length][NR], and writes the sum of each column to
   `sums`. In panels, the matrix is the right factor of a weight's gradient. */
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

/* ---- The product ---- */

/* Left factor of a product. Its element (i, k) is data[i / MR * tile + i % MR * row + k * step]. */
typedef struct {
    const float *data;
    long tile, row, step;
} left;

static left by_rows(const float *data, long width) { return (left){data, MR * width, width, 1}; }
/* Left factor in the layout of `pack_columns`, without its first `first` rows. */
static left by_columns(const float *data, long length, long first) {
    return (left){data + first * MR, length * MR, 1, MR};
}

/* Result of a product. Its element (i, j) is data[j / NR * panel + i * row + j % NR]. */
typedef struct {
    float *data;
    long row, panel;
} result;

/* Computes one tile (MR rows, NR columns) of to = before + alpha a b or, if `before` is NULL, of to = a b + bias. The sums stay in
   registers. */
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

#define NEAR_DEPTH 168 /* number of rows of a panel that fit into the first-level cache */

/* Computes c = before + alpha a b or, if `before` is NULL, c = a b + bias, where bias may be NULL. c has m rows, a multiple of MR, and
   `panels` panels. `before` has the layout of c, and may be c itself. The panels of b are b_panel floats apart.

   A part of a stays in the second-level cache while the panels of b are read one after the other. A part of each panel stays in the
   first-level cache. */
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
