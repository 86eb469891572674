/* One client's epoch of SGD on the next-word model, by hand: embedding, LSTM, two dense layers, softmax. Python's side is compiled.py.

   The weights are kept in panels (panels.h) for the whole epoch; a framework would rearrange them for each of the 20 steps of a batch of
   16. Gradients are added to them in place. Sizes ending in _p are rounded up to whole panels; what is added is zero in weights and
   activations, and stays zero. */

#include <math.h>

#include "panels.h"

#define BLOCK 64 /* positions whose logits are held at a time */

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
