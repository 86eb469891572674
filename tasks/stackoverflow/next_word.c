/* One client's epoch of SGD on the next-word model, by hand: embedding, LSTM, two dense layers, softmax. Python's side is compiled.py.

   Every product of matrices runs in one small kernel, `tile`: 4 rows by NR columns that stay in registers. Its right factor lies in
   panels of NR columns, [panel][row][NR], so that it is read in one straight line. The weights are kept in panels for the whole epoch
   (a framework would rearrange them for each of the 20 steps of a batch of 16), and their gradients are added to them in place.
   Sums are taken in a fixed order: the same input gives the same bits, on whatever thread.

   Sizes ending in _p are rounded up to whole panels; what is added is zero in weights and activations, and stays zero. */

#include <math.h>
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
#define BLOCK 64  /* positions whose logits are held at a time */

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define V(p) (*(vec *)(p))
#define CV(p) (*(const vec *)(p))
/* Holds a value in its register: gcc would read it again for each of its uses. */
#if defined(__x86_64__)
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) (void)(v)
#endif
#define INLINE static inline __attribute__((always_inline))

static long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

/* ---- elementary functions ---- */

INLINE vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }
INLINE vec at_least(vec x, float low) { return pick(x < low, (vec){0} + low, x); }
INLINE vec at_most(vec x, float high) { return pick(x > high, (vec){0} + high, x); }
INLINE vec larger(vec x, vec y) { return pick(x > y, x, y); }

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

#define MADD(i)                                                                                                        \
    do {                                                                                                               \
        float x = a[i * row];                                                                                          \
        c##i##0 += x * b0;                                                                                             \
        c##i##1 += x * b1;                                                                                             \
        c##i##2 += x * b2;                                                                                             \
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

/* c = or += of MR rows times `blocks` times `depth` rows of a panel. `ahead` is what is needed soon. */
static void tile(long blocks, long depth, const float *a, long row, long step, long skip, const float *b,
                 const float *ahead, float *c, long c_row, float alpha, const float *bias, int mode) {
    vec c00 = {0}, c01 = {0}, c02 = {0}, c10 = {0}, c11 = {0}, c12 = {0};
    vec c20 = {0}, c21 = {0}, c22 = {0}, c30 = {0}, c31 = {0}, c32 = {0};
    for (long block = 0; block < blocks; block++) {
        for (long k = 0; k < depth; k++) {
            vec b0 = CV(b), b1 = CV(b + VL), b2 = CV(b + 2 * VL);
            KEEP(b0);
            KEEP(b1);
            KEEP(b2);
            __builtin_prefetch(ahead, 0, 2);
            MADD(0);
            MADD(1);
            MADD(2);
            MADD(3);
            a += step, b += NR, ahead += NR / 4;
        }
        a += skip;
    }
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
}

/* c (m rows, `panels` panels of columns) = a b + bias (mode WRITE; bias may be NULL) or c += alpha a b (ADD).
   b's panels are b_panel apart; c's rows are c_row and its panels c_panel apart. m is a multiple of MR. */
static void multiply(long m, long depth, long panels, left a, const float *b, long b_panel, float *c, long c_row,
                     long c_panel, float alpha, const float *bias, int mode) {
    /* Many rows: the part of `a` that belongs to some rows of the panels stays in the cache for all panels. */
    long outer = m > 32, unit = a.depth ? a.depth : 1;
    long chunk = DEPTH / unit * unit;
    if (chunk == 0) chunk = unit;
    for (long first = 0; first < (outer ? depth : 1); first += chunk)
        for (long p = 0; p < panels; p++)
            for (long k = first; k < (outer ? first + 1 : depth); k += chunk) {
                long now = depth - k < chunk ? depth - k : chunk;
                const float *from = b + p * b_panel + k * NR;
                const float *at = a.data + (a.depth ? k / a.depth * a.block : k * a.step);
                const float *soon = from + (outer ? b_panel : now * NR);
                for (long i = 0; i < m; i += MR) {
                    if (a.depth)
                        tile(now / a.depth, a.depth, at, a.row, a.step, a.block - a.depth * a.step, from, soon,
                             c + p * c_panel + i * c_row, c_row, alpha, bias ? bias + p * NR : 0,
                             k ? ADD : mode);
                    else
                        tile(1, now, at, a.row, a.step, 0, from, soon, c + p * c_panel + i * c_row, c_row, alpha,
                             bias ? bias + p * NR : 0, k ? ADD : mode);
                    at += a.tile;
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

/* Panels of an (NR a) x (NR b) matrix, source panels `apart` from each other, into panels of its transpose. */
static void transpose(const float *from, long rows_p, long panels, long apart, float *to) {
    for (long q = 0; q < rows_p / NR; q++)
        for (long p = 0; p < panels; p++, to += NR * NR) {
            const float *block = from + p * apart + q * NR * NR;
            for (long j = 0; j < NR; j++)
                for (long i = 0; i < NR; i++) to[j * NR + i] = block[i * NR + j];
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

/* ---- the model ---- */

typedef struct {
    long classes, width, units, length, batch;      /* V, embedding, LSTM, words of a sentence, sentences of a batch */
    long classes_p, width_p, units_p, gates_p, rows; /* rows: of a batch, a multiple of MR */
    float *lstm, *lstm_bias, *project, *project_bias, *out, *out_bias;   /* weights, in panels */
    float *lstm_t, *project_t, *out_t, *out_gradient;
    float *inputs, *gates, *cells, *squashed, *states, *projected;
    float *d_states, *d_projected, *d_inputs, *packed, *sums, *tiles_x, *tiles_h;
    float *taken, *logits, *d_taken, *highest, *total, *tiles_p, *weight;
    int32_t *label;
    long *position;
} model;

/* Sets the sizes and hands out the arena; returns the floats it needs. With base = 0 only the number means something. */
static long lay_out(model *s, float *base) {
    long used = 0;
    s->classes_p = up(s->classes, NR), s->width_p = up(s->width, NR), s->units_p = up(s->units, NR);
    s->gates_p = 4 * s->units_p, s->rows = up(s->batch, MR);
    long all = s->rows * s->length, after = all + s->rows, both = s->width_p + s->units_p;
    /* Every array begins on a cache line, and ends with what tiles may prefetch or a vector may overhang. */
#define TAKE(name, count) s->name = base + used, used += up((count) + NR, 16)
    TAKE(lstm, both * s->gates_p);
    TAKE(lstm_bias, s->gates_p);
    TAKE(project, s->units_p * s->width_p);
    TAKE(project_bias, s->width_p);
    TAKE(out, s->width_p * s->classes_p);
    TAKE(out_bias, s->classes_p);
    long weights = used;
    TAKE(lstm_t, both * s->gates_p);
    TAKE(project_t, s->units_p * s->width_p);
    TAKE(out_t, s->width_p * s->classes_p);
    TAKE(out_gradient, s->width_p * s->classes_p);
    TAKE(inputs, all * s->width_p);
    TAKE(gates, all * s->gates_p);
    TAKE(cells, after * s->units_p);
    TAKE(squashed, all * s->units_p);
    TAKE(states, after * s->units_p);
    TAKE(projected, all * s->width_p);
    TAKE(d_states, all * s->units_p);
    TAKE(d_projected, all * s->width_p);
    TAKE(d_inputs, all * s->width_p);
    TAKE(packed, all * (s->gates_p > s->width_p ? s->gates_p : s->width_p));
    TAKE(sums, s->gates_p + s->width_p + s->classes_p);
    TAKE(tiles_x, all * s->width_p);
    TAKE(tiles_h, after * s->units_p);
    TAKE(taken, BLOCK * s->width_p);
    TAKE(logits, BLOCK * s->classes_p);
    TAKE(d_taken, BLOCK * s->width_p);
    TAKE(highest, BLOCK * VL);
    TAKE(total, BLOCK * VL);
    TAKE(tiles_p, BLOCK * s->width_p);
    TAKE(weight, all);
    s->label = (int32_t *)(base + used), used += up(all, 16);
    s->position = (long *)(base + used), used += 2 * up(all, 16);
#undef TAKE
    if (base) memset(base, 0, sizeof(float) * weights);
    return used;
}

static void forward(model *s, long steps, long rows) {
    long all = steps * rows, gates_p = s->gates_p, u = s->units_p, both = s->width_p + u;
    multiply(all, s->width_p, gates_p / NR, by_rows(s->inputs, s->width_p), s->lstm, both * NR, s->gates, gates_p, NR, 1,
             s->lstm_bias, WRITE);
    memset(s->states, 0, sizeof(float) * rows * u);
    memset(s->cells, 0, sizeof(float) * rows * u);
    for (long t = 0; t < steps; t++) {
        float *gates = s->gates + t * rows * gates_p;
        if (t)
            multiply(rows, u, gates_p / NR, by_rows(s->states + t * rows * u, u), s->lstm + s->width_p * NR, both * NR,
                     gates, gates_p, NR, 1, 0, ADD);
        for (long r = 0; r < rows; r++) {
            float *in = gates + r * gates_p, *forget = in + u, *candidate = in + 2 * u, *open = in + 3 * u;
            const float *before = s->cells + (t * rows + r) * u;
            float *cell = s->cells + ((t + 1) * rows + r) * u, *state = s->states + ((t + 1) * rows + r) * u;
            float *squashed = s->squashed + (t * rows + r) * u;
            for (long j = 0; j < u; j += VL) {
                vec i = sigmoid(CV(in + j)), f = sigmoid(CV(forget + j)), o = sigmoid(CV(open + j));
                vec g = hyperbolic_tangent(CV(candidate + j)), c = f * CV(before + j) + i * g;
                vec q = hyperbolic_tangent(c);
                V(in + j) = i, V(forget + j) = f, V(candidate + j) = g, V(open + j) = o;
                V(cell + j) = c, V(squashed + j) = q, V(state + j) = o * q;
            }
        }
    }
    multiply(all, u, s->width_p / NR, by_rows(s->states + rows * u, u), s->project, u * NR, s->projected, s->width_p, NR, 1,
             s->project_bias, WRITE);
}

/* Softmax and cross-entropy of up to BLOCK positions; writes their part of d_projected, adds to out_gradient and to the bias's sums.
   Panel by panel, so that logits are worked on while they are in the nearest cache. Returns the sum of weight times cross-entropy. */
static double softmax(model *s, const long *position, const float *weight, const int32_t *label, long count, int mode) {
    long rows = up(count, MR), e = s->width_p, panels = s->classes_p / NR, together = DEPTH / NR;
    float *logits = s->logits, scale[BLOCK], highest[BLOCK];
    double loss = 0;
    for (long r = 0; r < rows; r++) {
        if (r < count)
            memcpy(s->taken + r * e, s->projected + position[r] * e, sizeof(float) * e);
        else
            memset(s->taken + r * e, 0, sizeof(float) * e);
        V(s->highest + r * VL) = (vec){0} - 3e38f, V(s->total + r * VL) = (vec){0};
    }
    memset(s->d_taken, 0, sizeof(float) * rows * e);
    for (long p = 0; p < panels; p++) {
        float *at = logits + p * rows * NR;
        multiply(rows, e, 1, by_rows(s->taken, e), s->out + p * e * NR, e * NR, at, NR, 0, 1, s->out_bias + p * NR, WRITE);
        for (long r = 0; r < rows; r++, at += NR) {
            vec high = larger(larger(CV(at), CV(at + VL)), CV(at + 2 * VL));
            V(s->highest + r * VL) = larger(high, CV(s->highest + r * VL));
        }
    }
#define AT(r, k) logits[((k) / NR * rows + (r)) * NR + (k) % NR]
    for (long r = 0; r < rows; r++) {
        highest[r] = s->highest[r * VL];
        for (long j = 1; j < VL; j++) highest[r] = s->highest[r * VL + j] > highest[r] ? s->highest[r * VL + j] : highest[r];
        if (r < count) loss -= (double)weight[r] * (AT(r, label[position[r]]) - highest[r]);
    }
    for (long p = 0; p < panels; p += together) {
        long now = panels - p < together ? panels - p : together;
        float *at = logits + p * rows * NR;
        for (long q = 0; q < now; q++)
            for (long r = 0; r < rows; r++, at += NR) {
                vec e0 = exponential(CV(at) - highest[r]), e1 = exponential(CV(at + VL) - highest[r]);
                vec e2 = exponential(CV(at + 2 * VL) - highest[r]);
                V(at) = e0, V(at + VL) = e1, V(at + 2 * VL) = e2;
                V(s->total + r * VL) += e0 + e1 + e2;
            }
        left some = {logits + p * rows * NR, MR * NR, NR, 1, NR, rows * NR};
        multiply(rows, now * NR, e / NR, some, s->out_t + p * NR * NR, s->classes_p * NR, s->d_taken, e, NR, 1, 0, ADD);
    }
    for (long r = 0; r < rows; r++) {
        float total = 0;
        for (long j = 0; j < VL; j++) total += s->total[r * VL + j];
        scale[r] = r < count ? weight[r] / total : 0;
        if (r < count) {
            long word = label[position[r]];
            loss += (double)weight[r] * log((double)total);
            /* Row r becomes `total` times (softmax - one-hot); `scale` brings it to the gradient of the weighted cross-entropy. */
            AT(r, word) -= total;
            for (long j = 0; j < e; j += VL) {
                vec column = CV(s->out_t + (j / NR * s->classes_p + word) * NR + j % NR);
                V(s->d_projected + position[r] * e + j) = scale[r] * (CV(s->d_taken + r * e + j) - total * column);
            }
        }
        for (long j = 0; j < e; j += VL) V(s->taken + r * e + j) *= scale[r];
    }
#undef AT
    transpose_tiles(s->taken, rows, e, s->tiles_p);
    for (long p = 0; p < panels; p++) {
        const float *panel = logits + p * rows * NR;
        multiply(e, rows, 1, by_columns(s->tiles_p, rows, 0), panel, 0, s->out_gradient + p * e * NR, NR, 0, 1, 0, mode);
        vec s0 = {0}, s1 = {0}, s2 = {0};
        for (long r = 0; r < rows; r++, panel += NR)
            s0 += scale[r] * CV(panel), s1 += scale[r] * CV(panel + VL), s2 += scale[r] * CV(panel + 2 * VL);
        float *sums = s->sums + s->gates_p + e + p * NR;
        if (mode == WRITE)
            V(sums) = s0, V(sums + VL) = s1, V(sums + 2 * VL) = s2;
        else
            V(sums) += s0, V(sums + VL) += s1, V(sums + 2 * VL) += s2;
    }
    return loss;
}

static void through_time(model *s, long steps, long rows) {
    long gates_p = s->gates_p, u = s->units_p;
    float *d_cells = s->tiles_h; /* free until the states are rearranged */
    memset(d_cells, 0, sizeof(float) * rows * u);
    for (long t = steps - 1; t >= 0; t--) {
        float *gates = s->gates + t * rows * gates_p;
        for (long r = 0; r < rows; r++) {
            float *in = gates + r * gates_p, *forget = in + u, *candidate = in + 2 * u, *open = in + 3 * u;
            const float *before = s->cells + (t * rows + r) * u, *squashed = s->squashed + (t * rows + r) * u;
            const float *d_state = s->d_states + (t * rows + r) * u;
            for (long j = 0; j < u; j += VL) {
                vec i = CV(in + j), f = CV(forget + j), g = CV(candidate + j), o = CV(open + j);
                vec q = CV(squashed + j), dh = CV(d_state + j), dc = CV(d_cells + r * u + j) + dh * o * (1.0f - q * q);
                V(in + j) = dc * g * i * (1.0f - i);
                V(forget + j) = dc * CV(before + j) * f * (1.0f - f);
                V(candidate + j) = dc * i * (1.0f - g * g);
                V(open + j) = dh * q * o * (1.0f - o);
                V(d_cells + r * u + j) = dc * f;
            }
        }
        if (t)
            multiply(rows, gates_p, u / NR, by_rows(gates, gates_p), s->lstm_t + s->width_p * gates_p, gates_p * NR,
                     s->d_states + (t - 1) * rows * u, u, NR, 1, 0, ADD);
    }
}

static void descend(float *weights, const float *gradient, long count, float rate) {
    for (long j = 0; j < count; j += VL) V(weights + j) -= rate * CV(gradient + j);
}

/* One batch of `count` sentences; returns the mean loss. */
static double batch(model *s, const float *embedding, float *update, const int32_t *x, const int32_t *y, long count,
                    int masked, float rate) {
    long rows = up(count, MR), steps = masked ? 0 : s->length, e = s->width_p, u = s->units_p, both = e + u;
    long taken = 0;
    for (long r = 0; masked && r < count; r++)
        for (long t = steps; t < s->length; t++)
            if (y[r * s->length + t]) steps = t + 1; /* nothing behind the last word of all has any weight */
    if (steps == 0) return 0;
    long all = steps * rows;
    int32_t *label = s->label;
    for (long t = 0; t < steps; t++)
        for (long r = 0; r < rows; r++) {
            float *row = s->inputs + (t * rows + r) * e;
            memset(row, 0, sizeof(float) * e);
            if (r >= count) continue;
            long id = x[r * s->length + t];
            for (long j = 0; j < s->width; j++) row[j] = embedding[id * s->width + j] - update[id * s->width + j];
            label[t * rows + r] = y[r * s->length + t];
            if (!masked || label[t * rows + r]) s->position[taken++] = t * rows + r;
        }
    float each = 1.0f / taken;
    for (long j = 0; j < taken; j++) s->weight[j] = each;
    forward(s, steps, rows);

    transpose(s->lstm, both, s->gates_p / NR, both * NR, s->lstm_t);
    transpose(s->project, u, e / NR, u * NR, s->project_t);
    transpose(s->out, e, s->classes_p / NR, e * NR, s->out_t);
    memset(s->d_projected, 0, sizeof(float) * all * e);
    double loss = 0;
    for (long j = 0; j < taken; j += BLOCK)
        loss += softmax(s, s->position + j, s->weight + j, label, taken - j < BLOCK ? taken - j : BLOCK, j ? ADD : WRITE);
    descend(s->out, s->out_gradient, e * s->classes_p, rate);
    descend(s->out_bias, s->sums + s->gates_p + e, s->classes_p, rate);

    multiply(all, e, u / NR, by_rows(s->d_projected, e), s->project_t, e * NR, s->d_states, u, NR, 1, 0, WRITE);
    through_time(s, steps, rows);
    transpose_tiles(s->states, all + rows, u, s->tiles_h);
    rows_to_panels(s->d_projected, all, e, s->packed, s->sums);
    multiply(u, all, e / NR, by_columns(s->tiles_h, all + rows, rows), s->packed, all * NR, s->project, NR, u * NR, -rate, 0,
             ADD);
    descend(s->project_bias, s->sums, e, rate);

    multiply(all, s->gates_p, e / NR, by_rows(s->gates, s->gates_p), s->lstm_t, s->gates_p * NR, s->d_inputs, e, NR, 1, 0,
             WRITE);
    rows_to_panels(s->gates, all, s->gates_p, s->packed, s->sums);
    transpose_tiles(s->inputs, all, e, s->tiles_x);
    multiply(e, all, s->gates_p / NR, by_columns(s->tiles_x, all, 0), s->packed, all * NR, s->lstm, NR, both * NR, -rate, 0,
             ADD);
    /* The first step starts from zero: its rows add nothing. */
    multiply(u, all - rows, s->gates_p / NR, by_columns(s->tiles_h, all + rows, rows), s->packed + rows * NR, all * NR,
             s->lstm + e * NR, NR, both * NR, -rate, 0, ADD);
    descend(s->lstm_bias, s->sums, s->gates_p, rate);
    for (long t = 0; t < steps; t++)
        for (long r = 0; r < count; r++) {
            long id = x[r * s->length + t];
            const float *gradient = s->d_inputs + (t * rows + r) * e;
            for (long j = 0; j < s->width; j++) update[id * s->width + j] += rate * gradient[j];
        }
    return loss;
}

/* Floats that `next_word_epoch` needs to work in. */
long next_word_arena(long classes, long width, long units, long length, long batch_size) {
    model s = {.classes = classes, .width = width, .units = units, .length = length, .batch = batch_size};
    return lay_out(&s, 0);
}

/* One epoch over `sentences` sentences in their order. `weights` are the model's 8 tensors, `update` the same tensors before less after,
   both as Keras has them. Ends early, and for nothing, once *stop is not 0. Returns the sum over batches of the loss before the step times the sentences. */
double next_word_epoch(const float *const *weights, float *const *update, const int32_t *x, const int32_t *y,
                       long sentences, long classes, long width, long units, long length, long batch_size, int masked,
                       float rate, float *arena, const volatile int32_t *stop) {
    model s = {.classes = classes, .width = width, .units = units, .length = length, .batch = batch_size};
    lay_out(&s, arena);
    long e = s.width_p, u = s.units_p, both = e + u;
#if defined(__SSE__)
    /* Numbers below 2^-126 count as zero, as in TensorFlow's kernels. */
    unsigned int mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040);
#endif
    to_panels(weights[1], width, 4 * units, 4, s.lstm, both);
    to_panels(weights[2], units, 4 * units, 4, s.lstm + e * NR, both);
    to_panels(weights[3], 1, 4 * units, 4, s.lstm_bias, 1);
    to_panels(weights[4], units, width, 1, s.project, u);
    to_panels(weights[5], 1, width, 1, s.project_bias, 1);
    to_panels(weights[6], width, classes, 1, s.out, e);
    to_panels(weights[7], 1, classes, 1, s.out_bias, 1);
    for (long j = classes; j < s.classes_p; j++) s.out_bias[j] = -1e30f;
    memset(update[0], 0, sizeof(float) * classes * width);
    double loss = 0;
    for (long first = 0; first < sentences && !*stop; first += batch_size) {
        long count = sentences - first < batch_size ? sentences - first : batch_size;
        loss += count * batch(&s, weights[0], update[0], x + first * length, y + first * length, count, masked, rate);
    }
    difference(weights[1], s.lstm, width, 4 * units, 4, both, update[1]);
    difference(weights[2], s.lstm + e * NR, units, 4 * units, 4, both, update[2]);
    difference(weights[3], s.lstm_bias, 1, 4 * units, 4, 1, update[3]);
    difference(weights[4], s.project, units, width, 1, u, update[4]);
    difference(weights[5], s.project_bias, 1, width, 1, 1, update[5]);
    difference(weights[6], s.out, width, classes, 1, e, update[6]);
    difference(weights[7], s.out_bias, 1, classes, 1, 1, update[7]);
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(mode);
#endif
    return loss;
}
