/* The distinct beginnings of a batch's sentences: what sentences have in common is computed once. For next_word.c.

   A state of the LSTM depends on the words read so far and on nothing else. So sentences that begin alike share a row until they part, and
   all share the first, which reads the same mark of a beginning in each of them. Rows lie step by step, those of a step in the order of
   the rows that they continue, each step rounded up to a multiple of MR; step 0 is the empty beginning, whose state is zero. Likewise
   every distinct word of the batch is projected once. Only the order of sums is another than with a row for each position. */

#include "panels.h"

typedef struct {
    long steps, words, positions; /* longest sentence, distinct words, rows with a label */
    long *first, *count;          /* of a step: its first row, of steps + 2, and how many rows it has; the rest is padding */
    long *before, *word;          /* of a row: the row that it continues, and which of the distinct words it reads */
    int32_t *id;                  /* of a distinct word */
    long *position, *from;        /* of a labelled row: the row, and where its labels begin, of positions + 1 */
    int32_t *label;
    long *order, *ends, *alike, *at; /* of the sentences, sorted: which, how long, words in common with the one before, row so far */
    int32_t *place;                  /* of an id: which of the distinct words it is, plus 1; all 0 between batches */
} beginnings;

static long in_common(const int32_t *a, const int32_t *b, long length) {
    long t = 0;
    while (t < length && a[t] == b[t]) t++;
    return t;
}

static long shorter(long a, long b) { return a < b ? a : b; }

/* Sentences in the order of their words, so that those with a common beginning stand together, whatever its length. */
static void sort(beginnings *b, const int32_t *x, const int32_t *y, long count, long length, int masked) {
    for (long r = 0; r < count; r++) {
        long end = length, low = 0, high = r;
        while (masked && end && !y[r * length + end - 1]) end--; /* nothing behind its last label has any weight */
        while (low < high) {
            long middle = (low + high) / 2, other = b->order[middle], both = shorter(end, b->ends[middle]);
            long same = in_common(x + r * length, x + other * length, both);
            if (same == both ? end < b->ends[middle] : x[r * length + same] < x[other * length + same])
                high = middle;
            else
                low = middle + 1;
        }
        memmove(b->order + low + 1, b->order + low, sizeof(long) * (r - low));
        memmove(b->ends + low + 1, b->ends + low, sizeof(long) * (r - low));
        b->order[low] = r, b->ends[low] = end;
    }
    for (long s = 0; s < count; s++)
        b->alike[s] = s ? in_common(x + b->order[s - 1] * length, x + b->order[s] * length, shorter(b->ends[s - 1], b->ends[s])) : 0;
}

/* From sentences x with labels y, both (count, length); a label of 0 counts only if not `masked`. Returns how many labels count. */
static long share(beginnings *b, const int32_t *x, const int32_t *y, long count, long length, int masked) {
    long labels = 0, row = 0;
    sort(b, x, y, count, length, masked);
    b->steps = b->words = b->positions = 0;
    for (long s = 0; s < count; s++) {
        if (b->ends[s] > b->steps) b->steps = b->ends[s];
        b->at[s] = 0;
    }
    b->first[0] = 0, b->first[1] = MR, b->count[0] = 1;
    for (long t = 1; t <= b->steps; t++) {
        b->count[t] = 0;
        for (long s = 0; s < count; s++) {
            if (b->ends[s] < t) continue;
            long i = b->order[s] * length + t - 1;
            if (b->alike[s] < t) {
                row = b->first[t] + b->count[t]++;
                if (!b->place[x[i]]) b->id[b->words] = x[i], b->place[x[i]] = ++b->words;
                b->before[row] = b->at[s], b->word[row] = b->place[x[i]] - 1;
            }
            b->at[s] = row;
            if (masked && !y[i]) continue;
            if (!b->positions || b->position[b->positions - 1] != row)
                b->position[b->positions] = row, b->from[b->positions++] = labels;
            b->label[labels++] = y[i];
        }
        b->first[t + 1] = b->first[t] + up(b->count[t], MR);
    }
    b->from[b->positions] = labels;
    for (long w = 0; w < b->words; w++) b->place[b->id[w]] = 0;
    return labels;
}
