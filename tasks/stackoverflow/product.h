/* The one product of matrices, for next_word.c: c = a b + bias or c = plus + alpha a b, b and c in panels.

   It runs in one small kernel, `tile`: 4 rows by NR columns that stay in registers. The right factor is read in one straight line. Sums are
   taken in a fixed order: the same input gives the same bits, on whatever thread. */

#include "panels.h"

#define DEPTH 168 /* rows of a panel that one tile takes at a time: they fit the first-level cache, with the next ones */

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

#if defined(__AVX2__) && defined(__FMA__) && VL == 8 && defined(__x86_64__)
#define WRITTEN_OUT
/* The inner loop of `tile`; c00 .. c32 are its sums, ymm12 to ymm14 hold a row of the panel, ymm15 an element of the left factor.
   Written out, because a core that runs another thread as well is short of instructions: 19 for a row, 3 for 8 rows, and 3 where it
   fetches ahead. gcc's own choice of registers adds copies, some of them by way of memory. */
#define COLUMN(i, j) "vfmadd231ps %%ymm1" #j ", %%ymm15, %[c" #i "]\n\t"
#define LOAD(j, offset) "vmovups " offset "(%[b]), %%ymm1" #j "\n\t"
#define ELEMENT(at) "vbroadcastss " at ", %%ymm15\n\t"
#define ROWS(j, at0, at1, at2, at3)                                                                                    \
    ELEMENT(at0) LOAD(2, "96*" #j) COLUMN(00, 2) LOAD(3, "96*" #j "+32") COLUMN(01, 3) LOAD(4, "96*" #j "+64")         \
    COLUMN(02, 4)                                                                                                      \
    ELEMENT(at1) COLUMN(10, 2) COLUMN(11, 3) COLUMN(12, 4)                                                             \
    ELEMENT(at2) COLUMN(20, 2) COLUMN(21, 3) COLUMN(22, 4)                                                             \
    ELEMENT(at3) COLUMN(30, 2) COLUMN(31, 3) COLUMN(32, 4)
#define BY_ROWS(j) ROWS(j, "4*" #j "(%[a])", "4*" #j "(%[a],%[row])", "4*" #j "(%[a],%[row],2)", "4*" #j "(%[a],%[row3])")
#define BY_COLUMNS(j) ROWS(j, "16*" #j "(%[a])", "16*" #j "+4(%[a])", "16*" #j "+8(%[a])", "16*" #j "+12(%[a])")
#define FETCH(line) "prefetcht1 64*" #line "(%[b],%[ahead])\n\t"
#define NO_FETCH(line) ""
#define ZERO(i) "vxorps %[c" #i "], %[c" #i "], %[c" #i "]\n\t"
#define SUM(i) [c##i] "=&x"(c##i)
#define INNER(STEP, BYTES, FETCH)                                                                                      \
    __asm__ volatile(                                                                                                  \
        ZERO(00) ZERO(01) ZERO(02) ZERO(10) ZERO(11) ZERO(12) ZERO(20) ZERO(21) ZERO(22) ZERO(30) ZERO(31) ZERO(32)    \
        "1: mov %[eights], %[k]\n\t"                                                                                   \
        "test %[k], %[k]\n\t"                                                                                          \
        "jz 3f\n\t"                                                                                                    \
        ".p2align 5\n"                                                                                                 \
        "2:\n\t"                                                                                                       \
        STEP(0) FETCH(0) STEP(1) STEP(2) FETCH(1) STEP(3) STEP(4) FETCH(2) STEP(5) STEP(6) STEP(7)                     \
        "add $8*" #BYTES ", %[a]\n\t"                                                                                  \
        "add $768, %[b]\n\t"                                                                                           \
        "dec %[k]\n\t"                                                                                                 \
        "jnz 2b\n"                                                                                                     \
        "3: mov %[ones], %[k]\n\t"                                                                                     \
        "test %[k], %[k]\n\t"                                                                                          \
        "jz 5f\n"                                                                                                      \
        "4:\n\t"                                                                                                       \
        STEP(0)                                                                                                        \
        "add $" #BYTES ", %[a]\n\t"                                                                                    \
        "add $96, %[b]\n\t"                                                                                            \
        "dec %[k]\n\t"                                                                                                 \
        "jnz 4b\n"                                                                                                     \
        "5: add %[skip], %[a]\n\t"                                                                                     \
        "dec %[blocks]\n\t"                                                                                            \
        "jnz 1b\n"                                                                                                     \
        : SUM(00), SUM(01), SUM(02), SUM(10), SUM(11), SUM(12), SUM(20), SUM(21), SUM(22), SUM(30), SUM(31), SUM(32),  \
          [a] "+&r"(a), [b] "+&r"(b), [blocks] "+&r"(blocks), [k] "=&r"(k)                                             \
        : [row] "r"(4 * row), [row3] "r"(12 * row), [eights] "r"(depth / 8), [ones] "r"(depth % 8),                    \
          [skip] "r"(4 * skip), [ahead] "r"(4 * ahead)                                                                 \
        : "memory", "cc", "xmm12", "xmm13", "xmm14", "xmm15")
#else /* the same in C, for any processor */
/* Holds a value in its register: gcc would read it again for each of its uses. */
#if defined(__AVX__)
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) (void)(v)
#endif
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
#endif

#define STORE(i)                                                                                                       \
    do {                                                                                                               \
        float *at = c + i * c_row;                                                                                     \
        if (plus) {                                                                                                    \
            const float *before = plus + i * c_row;                                                                    \
            V(at) = CV(before) + alpha * c##i##0, V(at + VL) = CV(before + VL) + alpha * c##i##1,                      \
            V(at + 2 * VL) = CV(before + 2 * VL) + alpha * c##i##2;                                                    \
        } else if (bias) {                                                                                             \
            V(at) = c##i##0 + CV(bias), V(at + VL) = c##i##1 + CV(bias + VL),                                          \
            V(at + 2 * VL) = c##i##2 + CV(bias + 2 * VL);                                                              \
        } else {                                                                                                       \
            V(at) = c##i##0, V(at + VL) = c##i##1, V(at + 2 * VL) = c##i##2;                                           \
        }                                                                                                              \
    } while (0)

/* c, see `multiply`, of MR rows times `blocks` times `depth` rows of a panel. Of eight rows that are so many floats `ahead`, and needed soon, a
   quarter is fetched, from there on; none if it is 0. */
INLINE void tile(long blocks, long depth, const float *a, long row, const long step, long skip, const float *b,
                 long ahead, float *c, const float *plus, long c_row, float alpha, const float *bias) {
#ifdef WRITTEN_OUT
    vec c00, c01, c02, c10, c11, c12, c20, c21, c22, c30, c31, c32;
    long k;
    if (step == 1 && ahead)
        INNER(BY_ROWS, 4, FETCH);
    else if (step == 1)
        INNER(BY_ROWS, 4, NO_FETCH);
    else if (ahead)
        INNER(BY_COLUMNS, 16, FETCH);
    else
        INNER(BY_COLUMNS, 16, NO_FETCH);
#else
    vec c00 = {0}, c01 = {0}, c02 = {0}, c10 = {0}, c11 = {0}, c12 = {0};
    vec c20 = {0}, c21 = {0}, c22 = {0}, c30 = {0}, c31 = {0}, c32 = {0};
    const float *a0 = a, *a1 = a + row, *a2 = a1 + row, *a3 = a2 + row;
    for (long block = 0; block < blocks; block++) {
        long k = depth;
        for (; k >= 8; k -= 8) {
            for (long line = 0; ahead && line < 2 * NR; line += 16) __builtin_prefetch(b + ahead + line, 0, 2);
            for (int j = 0; j < 8; j++) STEP(j);
            a0 += 8 * step, a1 += 8 * step, a2 += 8 * step, a3 += 8 * step, b += 8 * NR;
        }
        for (; k > 0; k--, a0 += step, a1 += step, a2 += step, a3 += step, b += NR) STEP(0);
        a0 += skip, a1 += skip, a2 += skip, a3 += skip;
    }
#endif
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
}

/* c (m rows, `panels` panels of columns) = plus + alpha a b, or a b + bias where plus is NULL; bias may be NULL then. plus is laid out as
   c, and may be c. b's panels are b_panel apart; c's rows are c_row and its panels c_panel apart. m is a multiple of MR.

   What is used again and again should stay in a near cache: with few rows they do, and panels pass by once, in long parts. With many
   rows a part of `a` does, while panels pass by for each part: some of its columns, or, for a gradient of weights, where c is large, of
   its rows. */
static void multiply(long m, long depth, long panels, left a, const float *b, long b_panel, float *c, const float *plus,
                     long c_row, long c_panel, float alpha, const float *bias) {
    long gradient = a.step == MR, outer = m > 32 && !gradient, unit = a.depth ? a.depth : 1;
    if (gradient && m > DEPTH) {
        for (long i = 0; i < m; i += DEPTH, a.data += DEPTH / MR * a.tile)
            multiply(m - i < DEPTH ? m - i : DEPTH, depth, panels, a, b, b_panel, c + i * c_row,
                     plus ? plus + i * c_row : 0, c_row, c_panel, alpha, bias);
        return;
    }
    long chunk = gradient ? depth : (outer ? DEPTH : 4 * DEPTH) / unit * unit;
    for (long first = 0; first < (outer ? depth : 1); first += chunk)
        for (long p = 0; p < panels; p++)
            for (long k = first; k < (outer ? first + 1 : depth); k += chunk) {
                long now = depth - k < chunk ? depth - k : chunk, block = a.depth ? a.depth : now;
                const float *from = b + p * b_panel + k * NR, *at = a.data + (a.depth ? k / a.depth * a.block : k * a.step);
                /* Parts of all panels pass by: behind the last one comes the next part of the first. */
                long soon = outer && p + 1 < panels ? b_panel : now * NR - (outer ? p * b_panel : 0);
                for (long i = 0; i < m; i += MR, at += a.tile) {
                    float *to = c + p * c_panel + i * c_row;
                    const float *onto = k ? to : plus ? plus + p * c_panel + i * c_row : 0;
                    const float *with = bias ? bias + p * NR : 0;
                    if (gradient)
                        tile(1, now, at, 1, MR, 0, from, soon, to, onto, c_row, alpha, with);
                    else
                        tile(now / block, block, at, a.row, 1, a.block - block, from, soon, to, onto, c_row, alpha,
                             with);
                    soon = i < 3 * MR ? soon + 2 * NR : 0;
                }
            }
}
