/* decode_kinds.h - the kinds of records that bench_decode.c writes and both programs decode:
 * `n_floats` features f0, f1 ... and `n_ints` features i0, i1 ... of `length` values each, and a
 * bytes feature of n_bytes. */
#ifndef BENCH_DECODE_KINDS_H
#define BENCH_DECODE_KINDS_H

enum { DECODE_ROUNDS = 7, DECODE_RECORDS = 2000, DECODE_FEATURES_MAX = 64 };

static const struct decode_kind {
    const char *name;
    int n_bytes, n_floats, n_ints, length;
    unsigned max_int; /* the ints are below this value */
} decode_kinds[] = {
    { "picture", 3072, 0, 1, 1, 10 },    /* CIFAR-10: pixels and a label */
    { "tokens", 0, 0, 2, 512, 50000 },   /* of a text, and its labels */
    { "columns", 0, 13, 27, 1, 100000 }, /* Criteo: a list of one value per column */
};

#endif
