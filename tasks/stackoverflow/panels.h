/* Matrices in panels: vectors, elementary functions, the one product kernel, and rearranging. For next_word.c.

   Every product of matrices runs in one small kernel, `tile`: 4 rows by NR columns that stay in registers. Its right factor lies in
   panels of NR columns, [panel][row][NR], so that it is read in one straight line. Sums are taken in a fixed order: the same input
   gives the same bits, on whatever thread. Written for gcc and clang, whose vectors become the processor's own. */

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VL 16
#else
#define VL 8
#endif
#define MR 4
#define NR (3 * VL)
#define DEPTH 168 /* rows of a panel that one tile takes at a time: they fit the first-level cache, with the next ones */

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define V(p) (*(vec *)(p))
#define CV(p) (*(const vec *)(p))
/* Holds a value in its register: gcc would read it again for each of its uses. */
#if defined(__AVX__)
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) (void)(v)
#endif
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

/* exp(r) - 1 for the rest r of x = n ln 2 + r, |r| <= ln(2) / 2; *shifted holds n in its lowest bits. Taylor's series to r^8 / 8!,
   of which less than 1e-9 is missing. ln 2 is taken in two parts, of which the first times n is exact. */
INLINE vec reduced(vec x, ivec *shifted) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vec n = x * 1.44269504f + magic;
    *shifted = (ivec)n;
    n -= magic;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * (1.0f / 40320) + 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    return p * r * r + r;
}

INLINE vec exponential(vec x) {
    ivec n;
    vec p = reduced(at_most(at_least(x, -87.0f), 88.0f), &n) + 1.0f;
    return (vec)((ivec)p + (n << 23));
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* By exp(2 x) - 1, which loses nothing where x is small. */
INLINE vec hyperbolic_tangent(vec x) {
    ivec n;
    vec p = reduced(2.0f * at_most(at_least(x, -10.0f), 10.0f), &n);
    vec power = (vec)((n << 23) + 0x3f800000);
    vec less_one = power * p + (power - 1.0f);
    return less_one / (less_one + 2.0f);
}

/* ---- products ---- */

/* The left factor: element (i, k) is at data[i / MR * tile + i % MR * row + k / depth * block + k % depth * step]. */
typedef struct {
    const float *data;
    long tile, row, step, depth, block;
} left;

static left by_rows(const float *data, long width) { return (left){data, MR * width, width, 1, 0, 0}; }
/* As `transpose_tiles` writes it: [columns / MR][length][MR], of which rows from `first` on are taken. */
static left by_columns(const float *data, long length, long first) {
    return (left){data + first * MR, length * MR, 1, MR, 0, 0};
}

enum { WRITE, ADD };

/* c += x y. In gcc's own choice of registers one of the twelve sums below would not keep its place. */
#if defined(__FMA__)
#define MULTIPLY_ADD(c, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(x), "v"(y))
#else
#define MULTIPLY_ADD(c, x, y) ((c) += (x) * (y))
#endif
#define ROW(i, j)                                                                                                      \
    do {                                                                                                               \
        vec x = a##i[j * step] - (vec){0};                                                                             \
        MULTIPLY_ADD(c##i##0, x, b0);                                                                                  \
        MULTIPLY_ADD(c##i##1, x, b1);                                                                                  \
        MULTIPLY_ADD(c##i##2, x, b2);                                                                                  \
    } while (0)
#define STEP(j)                                                                                                        \
    do {                                                                                                               \
        vec b0 = CV(b + j * NR), b1 = CV(b + j * NR + VL), b2 = CV(b + j * NR + 2 * VL);                               \
        KEEP(b0);                                                                                                      \
        KEEP(b1);                                                                                                      \
        KEEP(b2);                                                                                                      \
        ROW(0, j);                                                                                                     \
        ROW(1, j);                                                                                                     \
        ROW(2, j);                                                                                                     \
        ROW(3, j);                                                                                                     \
    } while (0)
#define STORE(i)                                                                                                       \
    do {                                                                                                               \
        float *at = c + i * c_row;                                                                                     \
        if (mode == ADD) {                                                                                             \
            V(at) += alpha * c##i##0, V(at + VL) += alpha * c##i##1, V(at + 2 * VL) += alpha * c##i##2;                \
        } else if (bias) {                                                                                             \
            V(at) = c##i##0 + CV(bias), V(at + VL) = c##i##1 + CV(bias + VL),                                          \
            V(at + 2 * VL) = c##i##2 + CV(bias + 2 * VL);                                                              \
        } else {                                                                                                       \
            V(at) = c##i##0, V(at + VL) = c##i##1, V(at + 2 * VL) = c##i##2;                                           \
        }                                                                                                              \
    } while (0)

/* c = or += of MR rows times `blocks` times `depth` rows of a panel. `ahead` is what is needed soon: a quarter as much.

   Eight rows of the panel at a time, and `step` a constant where this is inlined: of 24 instructions a row only 20 are left. That counts
   where a core is short of them, as it is when it runs another thread as well. */
INLINE void tile(long blocks, long depth, const float *a, long row, const long step, long skip, const float *b,
                 const float *ahead, float *c, long c_row, float alpha, const float *bias, int mode) {
    vec c00 = {0}, c01 = {0}, c02 = {0}, c10 = {0}, c11 = {0}, c12 = {0};
    vec c20 = {0}, c21 = {0}, c22 = {0}, c30 = {0}, c31 = {0}, c32 = {0};
    const float *a0 = a, *a1 = a + row, *a2 = a1 + row, *a3 = a2 + row;
    for (long block = 0; block < blocks; block++) {
        long k = depth;
        for (; k >= 8; k -= 8) {
            for (long line = 0; line < 2 * NR; line += 16) __builtin_prefetch(ahead + line, 0, 2);
            STEP(0);
            STEP(1);
            STEP(2);
            STEP(3);
            STEP(4);
            STEP(5);
            STEP(6);
            STEP(7);
            a0 += 8 * step, a1 += 8 * step, a2 += 8 * step, a3 += 8 * step, b += 8 * NR, ahead += 2 * NR;
        }
        for (; k > 0; k--) {
            STEP(0);
            a0 += step, a1 += step, a2 += step, a3 += step, b += NR, ahead += NR / 4;
        }
        a0 += skip, a1 += skip, a2 += skip, a3 += skip;
    }
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
}

/* c (m rows, `panels` panels of columns) = a b + bias (mode WRITE; bias may be NULL) or c += alpha a b (ADD).
   b's panels are b_panel apart; c's rows are c_row and its panels c_panel apart. m is a multiple of MR.

   What is used again and again should stay in a near cache: with few rows they do, and panels pass by once. With many rows a part of
   `a` does, while panels pass by for each part: some of its columns, or, for a gradient of weights, where c is large, of its rows. */
static void multiply(long m, long depth, long panels, left a, const float *b, long b_panel, float *c, long c_row,
                     long c_panel, float alpha, const float *bias, int mode) {
    if (depth == 0) return; /* an empty sum: only ever added */
    long gradient = a.step == MR, outer = m > 32 && !gradient, unit = a.depth ? a.depth : 1;
    if (gradient && m > DEPTH) {
        for (long i = 0; i < m; i += DEPTH, a.data += DEPTH / MR * a.tile, c += DEPTH * c_row)
            multiply(m - i < DEPTH ? m - i : DEPTH, depth, panels, a, b, b_panel, c, c_row, c_panel, alpha, bias, mode);
        return;
    }
    long chunk = gradient ? depth : DEPTH / unit * unit;
    for (long first = 0; first < (outer ? depth : 1); first += chunk)
        for (long p = 0; p < panels; p++)
            for (long k = first; k < (outer ? first + 1 : depth); k += chunk) {
                long now = depth - k < chunk ? depth - k : chunk, block = a.depth ? a.depth : now;
                const float *from = b + p * b_panel + k * NR, *soon = from + (outer ? b_panel : now * NR);
                const float *at = a.data + (a.depth ? k / a.depth * a.block : k * a.step);
                for (long i = 0; i < m; i += MR, at += a.tile) {
                    float *to = c + p * c_panel + i * c_row;
                    const float *with = bias ? bias + p * NR : 0;
                    if (gradient)
                        tile(1, now, at, 1, MR, 0, from, soon, to, c_row, alpha, with, mode);
                    else
                        tile(now / block, block, at, a.row, 1, a.block - block, from, soon, to, c_row, alpha, with,
                             k ? ADD : mode);
                    soon = i < 4 * MR ? soon + now * (NR / 4) : from;
                }
            }
}

/* ---- rearranging ---- */

/* rows x columns, row by row, into panels; gates > 1 rounds each of as many equal parts of the columns up to whole panels. */
static void to_panels(const float *from, long rows, long columns, long gates, float *panels, long rows_p) {
    long part = columns / gates, part_p = up(part, NR);
    for (long g = 0; g < gates; g++)
        for (long p = 0; p < part_p / NR; p++) {
            long width = part - p * NR < NR ? part - p * NR : NR;
            float *to = panels + (g * (part_p / NR) + p) * rows_p * NR;
            for (long r = 0; r < rows; r++, to += NR)
                memcpy(to, from + r * columns + g * part + p * NR, sizeof(float) * width);
        }
}

/* update = from - panels, the inverse of `to_panels`. */
static void difference(const float *from, const float *panels, long rows, long columns, long gates, long rows_p,
                       float *update) {
    long part = columns / gates, part_p = up(part, NR);
    for (long g = 0; g < gates; g++)
        for (long p = 0; p < part_p / NR; p++) {
            long width = part - p * NR < NR ? part - p * NR : NR, place = g * part + p * NR;
            const float *now = panels + (g * (part_p / NR) + p) * rows_p * NR;
            for (long r = 0; r < rows; r++, now += NR, place += columns)
                for (long j = 0; j < width; j++) update[place + j] = from[place + j] - now[j];
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
    for (long q = 0; q < rows_p / NR; q++)
        for (long p = 0; p < panels; p++, to += NR * NR) {
            const float *block = from + p * apart + q * NR * NR;
            for (long j = 0; j < NR; j += 4)
                for (long i = 0; i < NR; i += 4) transpose_four(block + i * NR + j, to + j * NR + i);
        }
}

/* (length, width), row by row, into [width / MR][length][MR]. */
static void transpose_tiles(const float *from, long length, long width, float *to) {
    for (long m = 0; m < width; m += MR)
        for (long k = 0; k < length; k++, to += MR) memcpy(to, from + k * width + m, sizeof(float) * MR);
}

/* (length, width), row by row, into panels; sums[width] of each column besides. */
static void rows_to_panels(const float *from, long length, long width, float *to, float *sums) {
    for (long p = 0; p < width; p += NR) {
        vec s0 = {0}, s1 = {0}, s2 = {0};
        for (long k = 0; k < length; k++, to += NR) {
            const float *row = from + k * width + p;
            vec r0 = CV(row), r1 = CV(row + VL), r2 = CV(row + 2 * VL);
            s0 += r0, s1 += r1, s2 += r2;
            V(to) = r0, V(to + VL) = r1, V(to + 2 * VL) = r2;
        }
        V(sums + p) = s0, V(sums + p + VL) = s1, V(sums + p + 2 * VL) = s2;
    }
}

