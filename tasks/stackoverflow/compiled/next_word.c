/* One client's epoch of SGD on the next-word model: embedding, LSTM, two dense layers and softmax. epoch.py calls it from Python.

   The weights stay in panels (matrix.h) for the whole epoch, and gradients are added to them in place. The activations of a batch have a
   row for each position: step t of sentence r is row t * rows + r, where `rows` is the number of the batch's sentences, rounded up to a
   multiple of MR. Rows that only pad a batch have no gradient. */

#include <math.h>

#include "matrix.h"

#define BLOCK 160 /* number of positions whose logits are in memory at a time */

enum { INPUT, RECURRENT, LSTM_BIAS, PROJECT, PROJECT_BIAS, OUT, OUT_BIAS, MATRICES }; /* the weights after the embedding */

typedef struct {
    long classes, width, units, length, rows, steps; /* rows and steps are those of the current batch */
    long e, u, g;                                    /* width, units and four gates, padded to whole panels */
    matrix w[MATRICES];
    float *next_out, *next_bias; /* values that OUT and OUT_BIAS have after the current batch */
    float *inputs, *gates, *cells, *states, *projected, *d_cell, *d_states, *d_projected, *d_inputs;
    float *packed, *columns, *sums, *taken, *taken_columns, *logits, *d_taken;
    long *position; /* rows of the positions that have a label */
    int32_t *label;
    const int32_t *ends; /* words of the batch, if the LSTM's output stays the same after a sentence has ended; else 0 */
    long count;          /* number of sentences in the batch */
} model;

/* Places the model and its arrays in memory from `base` on, and returns how many floats they take. With base = 0, only the returned
   number has a meaning. */
static long lay_out(model *s, long batch_size, float *base) {
    long used = 0, all, widest;
    long rows[MATRICES] = {s->width, s->units, 1, s->units, 1, s->width, 1};
    long columns[MATRICES] = {4 * s->units, 4 * s->units, 4 * s->units, s->width, s->width, s->classes, s->classes};
    s->e = up(s->width, NR), s->u = up(s->units, NR), s->g = 4 * s->u;
    all = up(batch_size, MR) * (s->length + 1), widest = s->g > s->e ? s->g : s->e;
#define TAKE(pointer, count) pointer = (void *)(base + used), used += up((count) + NR, 16)
    for (int i = 0; i < MATRICES; i++) {
        matrix *w = &s->w[i];
        *w = sized(rows[i], columns[i], i <= LSTM_BIAS ? 4 : 1);
        TAKE(w->panels, w->rows_p * w->columns_p);
        if (rows[i] > 1) TAKE(w->transposed, w->rows_p * w->columns_p);
    }
    TAKE(s->next_out, s->w[OUT].rows_p * s->w[OUT].columns_p);
    TAKE(s->next_bias, s->w[OUT].columns_p);
    TAKE(s->inputs, all * s->e);
    TAKE(s->gates, all * s->g);
    TAKE(s->cells, all * s->u);
    TAKE(s->states, all * s->u);
    TAKE(s->projected, all * s->e);
    TAKE(s->d_cell, all * s->u);
    TAKE(s->d_states, all * s->u);
    TAKE(s->d_projected, all * s->e);
    TAKE(s->d_inputs, all * s->e);
    TAKE(s->packed, all * widest);
    TAKE(s->columns, all * (s->u > s->e ? s->u : s->e));
    TAKE(s->sums, widest);
    TAKE(s->taken, BLOCK * s->e);
    TAKE(s->taken_columns, BLOCK * s->e);
    TAKE(s->d_taken, BLOCK * s->e);
    TAKE(s->logits, BLOCK * s->w[OUT].columns_p);
    TAKE(s->position, 2 * all);
    TAKE(s->label, all);
#undef TAKE
    return used;
}

/* Returns whether step t of row r is padding, at which the LSTM's state and cell stay as they are. */
static int stays(const model *s, long t, long r) { return s->ends && r < s->count && !s->ends[r * s->length + t]; }

static void forward(model *s) {
    long R = s->rows, u = s->u, g = s->g;
    multiply(R * s->steps, s->e, g / NR, by_rows(s->inputs, s->e), s->w[INPUT].panels, s->e * NR,
             (result){s->gates, g, NR}, 0, 1, s->w[LSTM_BIAS].panels);
    memset(s->states, 0, sizeof(float) * R * u); /* rows t * R + r of states and cells are the values before step t */
    memset(s->cells, 0, sizeof(float) * R * u);
    for (long t = 0; t < s->steps; t++) {
        float *gates = s->gates + t * R * g;
        if (t)
            multiply(R, u, g / NR, by_rows(s->states + t * R * u, u), s->w[RECURRENT].panels, u * NR,
                     (result){gates, g, NR}, gates, 1, 0);
        for (long r = 0; r < R; r++) {
            float *in = gates + r * g, *forget = in + u, *candidate = in + 2 * u, *open = in + 3 * u;
            float *before = s->cells + (t * R + r) * u, *cell = before + R * u, *state = s->states + ((t + 1) * R + r) * u;
            for (long j = 0; j < u; j += VL) {
                vec i = sigmoid(CV(in + j)), f = sigmoid(CV(forget + j)), c = hyperbolic_tangent(CV(candidate + j));
                vec o = sigmoid(CV(open + j)), now = f * CV(before + j) + i * c;
                V(in + j) = i, V(forget + j) = f, V(candidate + j) = c, V(open + j) = o;
                V(cell + j) = now, V(state + j) = o * hyperbolic_tangent(now);
            }
            if (stays(s, t, r)) {
                memcpy(cell, before, sizeof(float) * u);
                memcpy(state, state - R * u, sizeof(float) * u);
            }
        }
    }
    multiply(R * s->steps, u, s->e / NR, by_rows(s->states + R * u, u), s->w[PROJECT].panels, u * NR,
             (result){s->projected, s->e, NR}, 0, 1, s->w[PROJECT_BIAS].panels);
}

/* Computes softmax and cross-entropy of up to BLOCK positions, each with the weight `each`. It writes the gradients of these positions to
   d_projected, and adds their part of the last layer's step to next_out and next_bias. Returns the sum of weight times cross-entropy. */
static double softmax(model *s, const long *position, const int32_t *label, long count, float each, int first, float rate) {
    long rows = up(count, MR), e = s->e;
    const matrix *out = &s->w[OUT];
    float highest[BLOCK], scale[BLOCK];
    double loss = 0;
#define LOGIT(r, k) s->logits[((k) / NR * rows + (r)) * NR + (k) % NR]
    for (long r = 0; r < rows; r++) {
        if (r < count)
            memcpy(s->taken + r * e, s->projected + position[r] * e, sizeof(float) * e);
        else
            memset(s->taken + r * e, 0, sizeof(float) * e);
        highest[r] = -3e38f, scale[r] = 0;
    }
    for (long p = 0; p < out->columns_p / NR; p++) {
        float *panel = s->logits + p * rows * NR;
        multiply(rows, e, 1, by_rows(s->taken, e), out->panels + p * e * NR, 0, (result){panel, NR, 0}, 0, 1,
                 s->w[OUT_BIAS].panels + p * NR);
        for (long r = 0; r < rows; r++)
            for (long j = 0; j < NR; j++) highest[r] = panel[r * NR + j] > highest[r] ? panel[r * NR + j] : highest[r];
    }
    for (long r = 0; r < count; r++) loss += (double)each * (highest[r] - LOGIT(r, label[r]));
    vec totals[BLOCK] = {{0}};
    for (long p = 0; p < out->columns_p / NR; p++)
        for (long r = 0; r < rows; r++)
            for (int v = 0; v < NV; v++) {
                float *at = s->logits + (p * rows + r) * NR + v * VL;
                vec x = exponential(CV(at) - highest[r]);
                V(at) = x, totals[r] += x;
            }
    for (long r = 0; r < count; r++) {
        float total = 0;
        for (int j = 0; j < VL; j++) total += totals[r][j];
        loss += (double)each * log((double)total);
        LOGIT(r, label[r]) -= total;
        scale[r] = each / total; /* with this factor, the row is the gradient of the weighted cross-entropy */
    }
#undef LOGIT
    pack_columns(s->taken, rows, e, s->taken_columns);
    memset(s->d_taken, 0, sizeof(float) * rows * e);
    for (long p = 0; p < out->columns_p / NR; p++) {
        float *panel = s->logits + p * rows * NR, *next = s->next_out + p * e * NR;
        const float *now = first ? out->panels + p * e * NR : next;
        for (int v = 0; v < NV; v++) {
            long at = p * NR + v * VL;
            vec sum = {0};
            for (long r = 0; r < rows; r++) sum += V(panel + r * NR + v * VL) *= scale[r];
            V(s->next_bias + at) = CV((first ? s->w[OUT_BIAS].panels : s->next_bias) + at) - rate * sum;
        }
        multiply(rows, NR, e / NR, by_rows(panel, NR), out->transposed + p * NR * NR, out->columns_p * NR,
                 (result){s->d_taken, e, NR}, s->d_taken, 1, 0);
        multiply(e, rows, 1, by_columns(s->taken_columns, rows, 0), panel, 0, (result){next, NR, 0}, now, -rate, 0);
    }
    for (long r = 0; r < count; r++) memcpy(s->d_projected + position[r] * e, s->d_taken + r * e, sizeof(float) * e);
    return loss;
}

/* Propagates gradients back through the steps of the LSTM. d_states has the gradients that come from the projection, and `gates` gets the
   gradients of the gates' inputs. */
static void through_time(model *s) {
    long R = s->rows, u = s->u, g = s->g;
    memset(s->d_cell, 0, sizeof(float) * R * u);
    for (long t = s->steps - 1; t >= 0; t--) {
        float *gates = s->gates + t * R * g;
        for (long r = 0; r < R; r++) {
            float *in = gates + r * g, *forget = in + u, *candidate = in + 2 * u, *open = in + 3 * u;
            const float *before = s->cells + (t * R + r) * u, *cell = before + R * u;
            float *d_cell = s->d_cell + r * u, *d_state = s->d_states + (t * R + r) * u;
            if (stays(s, t, r)) { /* the step changes nothing, so gradients pass on to the step before */
                memset(in, 0, sizeof(float) * g);
                for (long j = 0; t && j < u; j++) d_state[j - R * u] += d_state[j];
                continue;
            }
            for (long j = 0; j < u; j += VL) {
                vec i = CV(in + j), f = CV(forget + j), c = CV(candidate + j), o = CV(open + j);
                vec q = hyperbolic_tangent(CV(cell + j)), dh = CV(d_state + j);
                vec dc = CV(d_cell + j) + dh * o * (1.0f - q * q);
                V(in + j) = dc * c * i * (1.0f - i);
                V(forget + j) = dc * CV(before + j) * f * (1.0f - f);
                V(candidate + j) = dc * i * (1.0f - c * c);
                V(open + j) = dh * q * o * (1.0f - o);
                V(d_cell + j) = dc * f;
            }
        }
        float *d_before = s->d_states + (t - 1) * R * u;
        if (t)
            multiply(R, g, u / NR, by_rows(gates, g), s->w[RECURRENT].transposed, g * NR, (result){d_before, u, NR},
                     d_before, 1, 0);
    }
}

/* Computes w -= rate * a b, where b is rows first .. length - 1 of `packed`. */
static void descend(model *s, matrix *w, left a, long first, long length, float rate) {
    multiply(w->rows_p, length - first, w->columns_p / NR, a, s->packed + first * NR, length * NR,
             (result){w->panels, NR, w->rows_p * NR}, w->panels, -rate, 0);
}

static void descend_bias(model *s, matrix *w, float rate) {
    for (long j = 0; j < w->columns_p; j += VL) V(w->panels + j) -= rate * CV(s->sums + j);
}

/* Lists the positions of `count` sentences whose labels count in the loss: all of them or, if `masked`, those with a label that is not 0.
   It also sets rows and steps. */
static long find_labels(model *s, const int32_t *y, long count, int masked) {
    long labels = 0;
    s->rows = up(count, MR), s->steps = 0;
    for (long t = 0; t < s->length; t++)
        for (long r = 0; r < count; r++) {
            int32_t label = y[r * s->length + t];
            if (masked && !label) continue;
            s->position[labels] = t * s->rows + r, s->label[labels++] = label, s->steps = t + 1;
        }
    return labels;
}

/* Trains on one batch of `count` sentences, and returns the mean loss before the step. */
static double batch(model *s, const float *embedding, float *update, const int32_t *x, const int32_t *y, long count,
                    int ends, int masked, float rate) {
    s->ends = ends ? x : 0, s->count = count;
    long labels = find_labels(s, y, count, masked), R = s->rows, all = R * s->steps, e = s->e, u = s->u, g = s->g;
    if (!labels) return 0;
    memset(s->inputs, 0, sizeof(float) * all * e);
    for (long t = 0; t < s->steps; t++)
        for (long r = 0; r < count; r++) {
            long word = x[r * s->length + t] * s->width;
            for (long j = 0; j < s->width; j++) s->inputs[(t * R + r) * e + j] = embedding[word + j] - update[word + j];
        }
    forward(s);

    for (int i = 0; i < MATRICES; i++)
        if (s->w[i].transposed) transpose(&s->w[i]);
    memset(s->d_projected, 0, sizeof(float) * all * e);
    double loss = 0;
    for (long j = 0; j < labels; j += BLOCK)
        loss += softmax(s, s->position + j, s->label + j, least(labels - j, BLOCK), 1.0f / labels, j == 0, rate);
    multiply(all, e, u / NR, by_rows(s->d_projected, e), s->w[PROJECT].transposed, e * NR, (result){s->d_states, u, NR}, 0, 1, 0);
    through_time(s);
    multiply(all, g, e / NR, by_rows(s->gates, g), s->w[INPUT].transposed, g * NR, (result){s->d_inputs, e, NR}, 0, 1, 0);
    for (long t = 0; t < s->steps; t++)
        for (long r = 0; r < count; r++) {
            long word = x[r * s->length + t] * s->width;
            for (long j = 0; j < s->width; j++) update[word + j] += rate * s->d_inputs[(t * R + r) * e + j];
        }

    float *out = s->w[OUT].panels, *bias = s->w[OUT_BIAS].panels;
    s->w[OUT].panels = s->next_out, s->next_out = out;
    s->w[OUT_BIAS].panels = s->next_bias, s->next_bias = bias;
    pack_columns(s->states, all + R, u, s->columns);
    pack_rows(s->d_projected, all, e, s->packed, s->sums);
    descend(s, &s->w[PROJECT], by_columns(s->columns, all + R, R), 0, all, rate);
    descend_bias(s, &s->w[PROJECT_BIAS], rate);
    pack_rows(s->gates, all, g, s->packed, s->sums);
    descend(s, &s->w[RECURRENT], by_columns(s->columns, all + R, R), R, all, rate); /* without step 0, whose state is zero */
    pack_columns(s->inputs, all, e, s->columns);
    descend(s, &s->w[INPUT], by_columns(s->columns, all, 0), 0, all, rate);
    descend_bias(s, &s->w[LSTM_BIAS], rate);
    return loss;
}

/* Returns how many floats of working memory `next_word_epoch` needs. */
long next_word_arena(long classes, long width, long units, long length, long batch_size) {
    model s = {.classes = classes, .width = width, .units = units, .length = length};
    return lay_out(&s, batch_size, 0);
}

/* Trains for one epoch over `sentences` sentences in their order. `tensors` are the model's 8 weights in Keras's layout, and `update` gets
   the weights before the epoch minus those after it. `sizes` are the arguments of `next_word_arena`. If `ends` is set, the LSTM's output
   stays the same after the last word of a sentence. Returns the sum, over batches, of the mean loss before the step times the number of
   sentences. */
double next_word_epoch(const float *const *tensors, float *const *update, const int32_t *x, const int32_t *y, long sentences,
                       const long *sizes, int ends, int masked, float rate, float *arena) {
    model s = {.classes = sizes[0], .width = sizes[1], .units = sizes[2], .length = sizes[3]};
    long batch_size = sizes[4];
    lay_out(&s, batch_size, arena);
#if defined(__SSE__)
    /* Numbers below 2^-126 are treated as zero, as in TensorFlow's kernels. */
    unsigned int mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040);
#endif
    for (int i = 0; i < MATRICES; i++) pack(&s.w[i], tensors[i + 1]);
    for (long j = s.classes; j < s.w[OUT].columns_p; j++) s.w[OUT_BIAS].panels[j] = -1e30f; /* padding gets probability 0 */
    memset(update[0], 0, sizeof(float) * s.classes * s.width);
    double loss = 0;
    for (long first = 0; first < sentences; first += batch_size) {
        long count = least(sentences - first, batch_size);
        loss += count * batch(&s, tensors[0], update[0], x + first * s.length, y + first * s.length, count, ends, masked,
                              rate);
    }
    for (int i = 0; i < MATRICES; i++) unpack_difference(&s.w[i], tensors[i + 1], update[i + 1]);
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(mode);
#endif
    return loss;
}
