/* One client's epoch of SGD on the next-word model, by hand: embedding, LSTM, two dense layers, softmax. Python's side is compiled.py.

   The weights are kept in panels (panels.h) for the whole epoch; a framework would rearrange them for each of the 20 steps of a batch of
   16. Gradients are added to them in place. Sizes ending in _p are rounded up to whole panels; what is added is zero in weights and
   activations, and stays zero. */

#include <math.h>

#include "beginnings.h"
#include "product.h"

#define BLOCK 160 /* positions whose logits are held at a time */

/* ---- the model ---- */

/* In panels; the last three are transposes. */
typedef struct {
    float *lstm, *lstm_bias, *project, *project_bias, *out, *out_bias, *lstm_t, *project_t, *out_t;
} weights;

typedef struct {
    long classes, width, units, length, batch;       /* V, embedding, LSTM, words of a sentence, sentences of a batch */
    long classes_p, width_p, units_p, gates_p, rows; /* rows: of a batch, a multiple of MR */
    weights own;                                     /* this client's, from its first step on */
    const weights *at;                               /* where it is: `own`, or before that step those of the round */
    float *next_out; /* what own.out is going to be; the two change places with each batch */
    float *inputs, *by_word, *pushed, *gates, *cells, *squashed, *states, *projected;
    float *d_states, *d_cells, *d_pushed, *d_projected, *d_inputs, *packed, *sums, *tiles_x, *tiles_h;
    float *taken, *logits, *d_taken, *total, *tiles_p;
    beginnings tree;
} model;

/* Every array begins on a cache line, and ends with what tiles may prefetch or a vector may overhang. */
#define TAKE(name, count) s->name = base + used, used += up((count) + NR, 16)
#define TAKE_INT(name, count) s->name = (int32_t *)(base + used), used += up(count, 16)
#define TAKE_LONG(name, count) s->name = (long *)(base + used), used += 2 * up(count, 16)

/* Sets the sizes and the room of s->own; returns the floats it needs. With base = 0 only the number means something. */
static long lay_out_weights(model *s, float *base) {
    long used = 0, both;
    s->classes_p = up(s->classes, NR), s->width_p = up(s->width, NR), s->units_p = up(s->units, NR);
    s->gates_p = 4 * s->units_p, s->rows = up(s->batch, MR), both = s->width_p + s->units_p;
    TAKE(own.lstm, both * s->gates_p);
    TAKE(own.lstm_bias, s->gates_p);
    TAKE(own.project, s->units_p * s->width_p);
    TAKE(own.project_bias, s->width_p);
    TAKE(own.out, s->width_p * s->classes_p);
    TAKE(own.out_bias, s->classes_p);
    TAKE(own.lstm_t, both * s->gates_p);
    TAKE(own.project_t, s->units_p * s->width_p);
    TAKE(own.out_t, s->width_p * s->classes_p);
    return used;
}

/* The same for all that a client works in. */
static long lay_out(model *s, float *base) {
    long used = lay_out_weights(s, base), all = MR + s->rows * s->length;
    s->at = &s->own;
    TAKE_INT(tree.place, s->classes);
    if (base) memset(s->tree.place, 0, sizeof(int32_t) * s->classes);
    TAKE(next_out, s->width_p * s->classes_p);
    TAKE(inputs, all * s->width_p);
    TAKE(by_word, all * s->gates_p);
    TAKE(pushed, s->rows * s->gates_p);
    TAKE(gates, all * s->gates_p);
    TAKE(cells, all * s->units_p);
    TAKE(squashed, all * s->units_p);
    TAKE(states, all * s->units_p);
    TAKE(projected, all * s->width_p);
    TAKE(d_states, all * s->units_p);
    TAKE(d_cells, 2 * s->rows * s->units_p);
    TAKE(d_pushed, all * s->gates_p);
    TAKE(d_projected, all * s->width_p);
    TAKE(d_inputs, all * s->width_p);
    TAKE(packed, all * (s->gates_p > s->width_p ? s->gates_p : s->width_p));
    TAKE(sums, s->gates_p + s->width_p + s->classes_p);
    TAKE(tiles_x, all * s->width_p);
    TAKE(tiles_h, all * s->units_p);
    TAKE(taken, BLOCK * s->width_p);
    TAKE(logits, BLOCK * s->classes_p);
    TAKE(d_taken, BLOCK * s->width_p);
    TAKE(total, BLOCK * VL);
    TAKE(tiles_p, BLOCK * s->width_p);
    TAKE_LONG(tree.first, s->length + 2);
    TAKE_LONG(tree.count, s->length + 1);
    TAKE_LONG(tree.before, all);
    TAKE_LONG(tree.word, all);
    TAKE_INT(tree.id, all);
    TAKE_LONG(tree.position, all);
    TAKE_LONG(tree.from, all + 1);
    TAKE_INT(tree.label, all);
    TAKE_LONG(tree.order, s->rows);
    TAKE_LONG(tree.ends, s->rows);
    TAKE_LONG(tree.alike, s->rows);
    TAKE_LONG(tree.at, s->rows);
    return used;
}
#undef TAKE
#undef TAKE_INT
#undef TAKE_LONG

static void transpose_weights(const model *s, const weights *w) {
    long both = s->width_p + s->units_p;
    transpose(w->lstm, both, s->gates_p / NR, both * NR, w->lstm_t);
    transpose(w->project, s->units_p, s->width_p / NR, s->units_p * NR, w->project_t);
    transpose(w->out, s->width_p, s->classes_p / NR, s->width_p * NR, w->out_t);
}

/* Of the rows behind a step's last, which only fill it up: nothing may come of them. */
static void fill(float *rows, long width, long first, long count, long next) {
    memset(rows + (first + count) * width, 0, sizeof(float) * (next - first - count) * width);
}

static void forward(model *s) {
    const beginnings *b = &s->tree;
    long gates_p = s->gates_p, u = s->units_p, both = s->width_p + u;
    multiply(up(b->words, MR), s->width_p, gates_p / NR, by_rows(s->inputs, s->width_p), s->at->lstm, both * NR,
             s->by_word, 0, gates_p, NR, 1, s->at->lstm_bias);
    memset(s->states, 0, sizeof(float) * MR * u);
    memset(s->cells, 0, sizeof(float) * MR * u);
    memset(s->pushed, 0, sizeof(float) * MR * gates_p);
    for (long t = 1; t <= b->steps; t++) {
        long from = b->first[t - 1], first = b->first[t];
        if (t > 1)
            multiply(first - from, u, gates_p / NR, by_rows(s->states + from * u, u), s->at->lstm + s->width_p * NR, both * NR,
                     s->pushed, 0, gates_p, NR, 1, 0);
        for (long r = first; r < first + b->count[t]; r++) {
            const float *read = s->by_word + b->word[r] * gates_p, *pushed = s->pushed + (b->before[r] - from) * gates_p;
            const float *before = s->cells + b->before[r] * u;
            float *in = s->gates + r * gates_p, *forget = in + u, *candidate = in + 2 * u, *open = in + 3 * u;
            float *cell = s->cells + r * u, *state = s->states + r * u, *squashed = s->squashed + r * u;
#define GATE(k) (CV(read + k * u + j) + CV(pushed + k * u + j))
            /* In two loops: in one, the long chain from gate to state would be all that a core has in flight. */
            for (long j = 0; j < u; j += VL) {
                vec x[3] = {GATE(0), GATE(1), GATE(3)}, g = hyperbolic_tangent(GATE(2));
                sigmoids(x, 3);
                V(in + j) = x[0], V(forget + j) = x[1], V(candidate + j) = g, V(open + j) = x[2];
                V(cell + j) = x[1] * CV(before + j) + x[0] * g;
            }
            for (long j = 0; j < u; j += VL) {
                vec q = hyperbolic_tangent(CV(cell + j));
                V(squashed + j) = q, V(state + j) = CV(open + j) * q;
            }
#undef GATE
        }
        fill(s->states, u, first, b->count[t], b->first[t + 1]);
    }
    multiply(b->first[b->steps + 1], u, s->width_p / NR, by_rows(s->states, u), s->at->project, u * NR, s->projected, 0,
             s->width_p, NR, 1, s->at->project_bias);
}

/* One panel of logits of `rows` positions, into `logits`. */
static void one_panel(const model *s, long rows, long p, float *logits) {
    long e = s->width_p;
    multiply(rows, e, 1, by_rows(s->taken, e), s->at->out + p * e * NR, e * NR, logits, 0, NR, 0, 1, s->at->out_bias + p * NR);
}

/* The largest logit among the first `panels` panels. */
static void largest(const model *s, long rows, long panels, float *highest) {
    for (long r = 0; r < rows; r++) highest[r] = -3e38f;
    for (long p = 0; p < panels; p++) {
        one_panel(s, rows, p, s->logits);
        for (long k = 0; k < rows * NR; k++) highest[k / NR] = s->logits[k] > highest[k / NR] ? s->logits[k] : highest[k / NR];
    }
}

/* Exponentials of all logits less `highest`, into s->logits, their sums, and their product with the transposed weights, a few panels at a
   time, while they are in a near cache. Returns whether a sum is too large for the number format to be at its best. */
static int softmax_sums(model *s, long rows, const float *highest, float *total) {
    long e = s->width_p, panels = s->classes_p / NR, together = DEPTH / NR;
    memset(s->d_taken, 0, sizeof(float) * rows * e);
    memset(s->total, 0, sizeof(float) * rows * VL);
    for (long p = 0; p < panels; p += together) {
        long now = panels - p < together ? panels - p : together;
        float *group = s->logits + p * rows * NR, *at = group;
        for (long q = p; q < p + now; q++) {
            one_panel(s, rows, q, at);
            for (long r = 0; r < rows; r++, at += NR) {
                vec x[3] = {CV(at) - highest[r], CV(at + VL) - highest[r], CV(at + 2 * VL) - highest[r]};
                exponentials(x, 3);
                V(at) = x[0], V(at + VL) = x[1], V(at + 2 * VL) = x[2];
                V(s->total + r * VL) += x[0] + x[1] + x[2];
            }
        }
        left some = {group, MR * NR, NR, 1, NR, rows * NR};
        multiply(rows, now * NR, e / NR, some, s->at->out_t + p * NR * NR, s->classes_p * NR, s->d_taken, s->d_taken, e, NR, 1, 0);
    }
    int large = 0;
    for (long r = 0; r < rows; r++) {
        total[r] = 0;
        for (long j = 0; j < VL; j++) total[r] += s->total[r * VL + j];
        large |= total[r] > 1e15f;
    }
    return large;
}

/* Softmax and cross-entropy of up to BLOCK positions; writes their part of d_projected, takes their step of the last layer's
   weights into next_out, and adds to the bias's sums. Returns the sum of weight times cross-entropy. */
static double softmax(model *s, const long *position, const long *from, long count, float each, int first, float rate) {
    const int32_t *label = s->tree.label;
    long rows = up(count, MR), e = s->width_p, panels = s->classes_p / NR;
    float *logits = s->logits, scale[BLOCK], highest[BLOCK], total[BLOCK];
    double loss = 0;
    for (long r = 0; r < rows; r++) {
        if (r < count)
            memcpy(s->taken + r * e, s->projected + position[r] * e, sizeof(float) * e);
        else
            memset(s->taken + r * e, 0, sizeof(float) * e);
    }
    /* What is subtracted from the logits cancels; it only has to be near the largest. The most frequent words nearly always have one. */
    largest(s, rows, 1, highest);
    if (softmax_sums(s, rows, highest, total)) {
        largest(s, rows, panels, highest);
        softmax_sums(s, rows, highest, total);
    }
#define AT(r, k) logits[((k) / NR * rows + (r)) * NR + (k) % NR]
    for (long r = 0; r < rows; r++) {
        scale[r] = 0;
        if (r < count) {
            long labels = from[r + 1] - from[r];
            float *to = s->d_projected + position[r] * e, a_label = total[r] / labels;
            loss += (double)each * labels * (log((double)total[r]) + highest[r]);
            /* Row r becomes `total` times (softmax - mean one-hot); `scale` brings it to the gradient of the weighted cross-entropy. */
            scale[r] = each * labels / total[r];
            for (long l = from[r]; l < from[r + 1]; l++) {
                vec logit = {0};
                AT(r, label[l]) -= a_label;
                for (long j = 0; j < e; j += VL) {
                    vec w = CV(s->at->out_t + (j / NR * s->classes_p + label[l]) * NR + j % NR);
                    logit += w * CV(s->taken + r * e + j), V(s->d_taken + r * e + j) -= a_label * w;
                }
                for (long j = 0; j < VL; j++) loss -= (double)each * logit[j];
                loss -= (double)each * s->at->out_bias[label[l]];
            }
            for (long j = 0; j < e; j += VL) V(to + j) = scale[r] * CV(s->d_taken + r * e + j);
        }
        for (long j = 0; j < e; j += VL) V(s->taken + r * e + j) *= scale[r];
    }
#undef AT
    transpose_tiles(s->taken, rows, e, s->tiles_p);
    for (long p = 0; p < panels; p++) {
        const float *panel = logits + p * rows * NR;
        float *next = s->next_out + p * e * NR;
        multiply(e, rows, 1, by_columns(s->tiles_p, rows, 0), panel, 0, next, first ? s->at->out + p * e * NR : next, NR, 0, -rate, 0);
        vec s0 = {0}, s1 = {0}, s2 = {0};
        for (long r = 0; r < rows; r++, panel += NR)
            s0 += scale[r] * CV(panel), s1 += scale[r] * CV(panel + VL), s2 += scale[r] * CV(panel + 2 * VL);
        float *sums = s->sums + s->gates_p + e + p * NR;
        if (first)
            V(sums) = s0, V(sums + VL) = s1, V(sums + 2 * VL) = s2;
        else
            V(sums) += s0, V(sums + VL) += s1, V(sums + 2 * VL) += s2;
    }
    return loss;
}

INLINE void put(float *at, vec x, int again) {
    if (again)
        V(at) += x;
    else
        V(at) = x;
}

/* Row r of a step: the gradients before its gates. `again`: another row has written to the one that both continue. */
INLINE void through_gates(model *s, long r, const float *d_cell, float *back, int again) {
    const beginnings *b = &s->tree;
    long gates_p = s->gates_p, u = s->units_p;
    const float *in = s->gates + r * gates_p, *forget = in + u, *candidate = in + 2 * u, *open = in + 3 * u;
    const float *before = s->cells + b->before[r] * u, *squashed = s->squashed + r * u, *d_state = s->d_states + r * u;
    float *read = s->by_word + b->word[r] * gates_p, *pushed = s->d_pushed + b->before[r] * gates_p;
#define ADD_GATE(k, gradient)                                                                                          \
    do {                                                                                                               \
        vec d = gradient;                                                                                              \
        V(read + k * u + j) += d, put(pushed + k * u + j, d, again);                                                   \
    } while (0)
    for (long j = 0; j < u; j += VL) {
        vec i = CV(in + j), f = CV(forget + j), g = CV(candidate + j), o = CV(open + j);
        vec q = CV(squashed + j), dh = CV(d_state + j), dc = CV(d_cell + j) + dh * o * (1.0f - q * q);
        ADD_GATE(0, dc * g * i * (1.0f - i));
        ADD_GATE(1, dc * CV(before + j) * f * (1.0f - f));
        ADD_GATE(2, dc * i * (1.0f - g * g));
        ADD_GATE(3, dh * q * o * (1.0f - o));
        put(back + j, dc * f, again);
    }
#undef ADD_GATE
}

static void through_time(model *s) {
    const beginnings *b = &s->tree;
    long gates_p = s->gates_p, u = s->units_p;
    memset(s->by_word, 0, sizeof(float) * up(b->words, MR) * gates_p);
    memset(s->d_cells, 0, sizeof(float) * 2 * s->rows * u);
    for (long t = b->steps; t > 0; t--) {
        long from = b->first[t - 1], first = b->first[t], next = from;
        const float *d_cells = s->d_cells + t % 2 * s->rows * u;
        float *d_before = s->d_cells + (t + 1) % 2 * s->rows * u;
        for (long r = first; r <= first + b->count[t]; r++) {
            long to = r < first + b->count[t] ? b->before[r] : first; /* in ascending order; what is left out nothing continues */
            if (to > next) {
                memset(d_before + (next - from) * u, 0, sizeof(float) * (to - next) * u);
                memset(s->d_pushed + next * gates_p, 0, sizeof(float) * (to - next) * gates_p);
            }
            if (to == first) break;
            if (to < next)
                through_gates(s, r, d_cells + (r - first) * u, d_before + (to - from) * u, 1);
            else
                through_gates(s, r, d_cells + (r - first) * u, d_before + (to - from) * u, 0);
            next = to + 1;
        }
        if (t > 1)
            multiply(first - from, gates_p, u / NR, by_rows(s->d_pushed + from * gates_p, gates_p),
                     s->at->lstm_t + s->width_p * gates_p, gates_p * NR, s->d_states + from * u, s->d_states + from * u, u, NR, 1,
                     0);
    }
}

static void descend(float *to, const float *from, const float *gradient, long count, float rate) {
    for (long j = 0; j < count; j += VL) V(to + j) = CV(from + j) - rate * CV(gradient + j);
}

/* One batch of `count` sentences; returns the mean loss. */
static double batch(model *s, const float *embedding, float *update, const int32_t *x, const int32_t *y, long count,
                    int masked, float rate) {
    const beginnings *b = &s->tree;
    long e = s->width_p, u = s->units_p, both = e + u, labels = share(&s->tree, x, y, count, s->length, masked);
    if (labels == 0) return 0;
    long words = up(b->words, MR), rows = b->first[b->steps + 1], last = b->first[b->steps];
    memset(s->inputs, 0, sizeof(float) * words * e);
    for (long w = 0; w < b->words; w++)
        for (long j = 0, k = b->id[w] * s->width; j < s->width; j++) s->inputs[w * e + j] = embedding[k + j] - update[k + j];
    forward(s);

    if (s->at == &s->own) transpose_weights(s, s->at);
    memset(s->d_projected, 0, sizeof(float) * rows * e);
    double loss = 0;
    long parts = up(b->positions, BLOCK) / BLOCK, part = up((b->positions + parts - 1) / parts, MR);
    for (long j = 0; j < b->positions; j += part)
        loss += softmax(s, b->position + j, b->from + j, shorter(b->positions - j, part), 1.0f / labels, j == 0, rate);
    multiply(rows, e, u / NR, by_rows(s->d_projected, e), s->at->project_t, e * NR, s->d_states, 0, u, NR, 1, 0);
    through_time(s);
    multiply(words, s->gates_p, e / NR, by_rows(s->by_word, s->gates_p), s->at->lstm_t, s->gates_p * NR, s->d_inputs, 0, e, NR, 1,
             0);
    for (long w = 0; w < b->words; w++)
        for (long j = 0, k = b->id[w] * s->width; j < s->width; j++) update[k + j] += rate * s->d_inputs[w * e + j];

    const weights *from = s->at, *to = s->at = &s->own; /* all of it is written, here and by `softmax` */
    float *was = s->own.out;
    s->own.out = s->next_out, s->next_out = was;
    descend(to->out_bias, from->out_bias, s->sums + s->gates_p + e, s->classes_p, rate);
    transpose_tiles(s->states, rows, u, s->tiles_h);
    rows_to_panels(s->d_projected, rows, e, s->packed, s->sums);
    multiply(u, rows, e / NR, by_columns(s->tiles_h, rows, 0), s->packed, rows * NR, to->project, from->project, NR, u * NR, -rate,
             0);
    descend(to->project_bias, from->project_bias, s->sums, e, rate);
    /* The empty beginning is zero: its rows add nothing, and are taken only where there are no others. */
    long behind = last > MR ? MR : 0;
    rows_to_panels(s->d_pushed, last, s->gates_p, s->packed, s->sums);
    multiply(u, last - behind, s->gates_p / NR, by_columns(s->tiles_h, rows, behind), s->packed + behind * NR, last * NR,
             to->lstm + e * NR, from->lstm + e * NR, NR, both * NR, -rate, 0);
    rows_to_panels(s->by_word, words, s->gates_p, s->packed, s->sums);
    transpose_tiles(s->inputs, words, e, s->tiles_x);
    multiply(e, words, s->gates_p / NR, by_columns(s->tiles_x, words, 0), s->packed, words * NR, to->lstm, from->lstm, NR,
             both * NR, -rate, 0);
    descend(to->lstm_bias, from->lstm_bias, s->sums, s->gates_p, rate);
    return loss;
}

static model sized(long classes, long width, long units, long length, long batch_size) {
    return (model){.classes = classes, .width = width, .units = units, .length = length, .batch = batch_size};
}

/* Floats that `next_word_weights` writes. */
long next_word_room(long classes, long width, long units) {
    model s = sized(classes, width, units, 0, 0);
    return lay_out_weights(&s, 0);
}

/* The model's 8 tensors, as Keras has them, as all clients of a round begin with them. */
void next_word_weights(const float *const *tensors, long classes, long width, long units, float *room) {
    model s = sized(classes, width, units, 0, 0);
    lay_out_weights(&s, room);
    long e = s.width_p, u = s.units_p, both = e + u;
    to_panels(tensors[1], width, e, 4 * units, 4, s.own.lstm, both);
    to_panels(tensors[2], units, u, 4 * units, 4, s.own.lstm + e * NR, both);
    to_panels(tensors[3], 1, 1, 4 * units, 4, s.own.lstm_bias, 1);
    to_panels(tensors[4], units, u, width, 1, s.own.project, u);
    to_panels(tensors[5], 1, 1, width, 1, s.own.project_bias, 1);
    to_panels(tensors[6], width, e, classes, 1, s.own.out, e);
    to_panels(tensors[7], 1, 1, classes, 1, s.own.out_bias, 1);
    for (long j = classes; j < s.classes_p; j++) s.own.out_bias[j] = -1e30f;
    transpose_weights(&s, &s.own);
}

/* Floats that `next_word_epoch` needs to work in. */
long next_word_arena(long classes, long width, long units, long length, long batch_size) {
    model s = sized(classes, width, units, length, batch_size);
    return lay_out(&s, 0);
}

/* One epoch over `sentences` sentences in their order. `tensors` are the model's, `room` what `next_word_weights` has made of them, which
   is only read, `update` the same tensors before less after. Ends early, and for nothing, once *stop is not 0. Returns the sum over
   batches of the loss before the step times the sentences. */
double next_word_epoch(const float *const *tensors, float *room, float *const *update, const int32_t *x, const int32_t *y,
                       long sentences, long classes, long width, long units, long length, long batch_size, int masked,
                       float rate, float *arena, const volatile int32_t *stop) {
    model of_round = sized(classes, width, units, length, batch_size), s = of_round;
    lay_out_weights(&of_round, room);
    lay_out(&s, arena);
    s.at = &of_round.own;
    long e = s.width_p, u = s.units_p, both = e + u;
#if defined(__SSE__)
    /* Numbers below 2^-126 count as zero, as in TensorFlow's kernels. */
    unsigned int mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040);
#endif
    memset(update[0], 0, sizeof(float) * classes * width);
    double loss = 0;
    for (long first = 0; first < sentences && !*stop; first += batch_size) {
        long count = sentences - first < batch_size ? sentences - first : batch_size;
        loss += count * batch(&s, tensors[0], update[0], x + first * length, y + first * length, count, masked, rate);
    }
    difference(tensors[1], s.at->lstm, width, 4 * units, 4, both, update[1]);
    difference(tensors[2], s.at->lstm + e * NR, units, 4 * units, 4, both, update[2]);
    difference(tensors[3], s.at->lstm_bias, 1, 4 * units, 4, 1, update[3]);
    difference(tensors[4], s.at->project, units, width, 1, u, update[4]);
    difference(tensors[5], s.at->project_bias, 1, width, 1, 1, update[5]);
    difference(tensors[6], s.at->out, width, classes, 1, e, update[6]);
    difference(tensors[7], s.at->out_bias, 1, classes, 1, 1, update[7]);
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(mode);
#endif
    return loss;
}
