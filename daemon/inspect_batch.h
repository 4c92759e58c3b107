/* inspect_batch.h - the number of samples with which `trainerctl inspect` plans a network. */
#ifndef DAEMON_INSPECT_BATCH_H
#define DAEMON_INSPECT_BATCH_H

#include <stdint.h>

struct buf;
struct graph;

enum inspect_batch_from {
    INSPECT_BATCH_DEFAULT, /* 1 */
    INSPECT_BATCH_FLAG,    /* --batch */
    INSPECT_BATCH_FILE,    /* an input of the file fixes it */
    INSPECT_BATCH_LEAST,   /* 2, because 1 is refused (BatchNormalization, one value per channel) */
};

enum { INSPECT_BATCH_MAX = 1 << 24 };

struct inspect_batch {
    uint32_t n;
    enum inspect_batch_from from;
    const char *why; /* FILE: name of the input, owned by the graph; LEAST: the error text for
                      * batch 1, owned by the caller; else NULL */
};

/* Sets the batch that the inputs of the file fix, else 1. Keeps a batch of --batch. */
void inspect_batch_choose(struct inspect_batch *b, const struct graph *g);
/* Prints a line on stdout. */
void inspect_batch_print(const struct inspect_batch *b);
/* Appends a comma and the keys "batch" and "batch_from". */
void inspect_batch_json(const struct inspect_batch *b, struct buf *out);

#endif
