/* inspect_batch.h - with how many samples `trainerctl inspect` plans a network. */
#ifndef DAEMON_INSPECT_BATCH_H
#define DAEMON_INSPECT_BATCH_H

#include <stdint.h>

struct buf;
struct graph;

enum inspect_batch_from {
    INSPECT_BATCH_DEFAULT, /* 1 */
    INSPECT_BATCH_FLAG,    /* --batch */
    INSPECT_BATCH_FILE,    /* an input of the file states it */
    INSPECT_BATCH_LEAST,   /* 2: 1 is refused, as by a BatchNormalization with one value per channel */
};

enum { INSPECT_BATCH_MAX = 1 << 24 };

struct inspect_batch {
    uint32_t n;
    enum inspect_batch_from from;
    const char *why; /* FILE: the input's name, the graph's; LEAST: what refuses 1, the caller's */
};

/* The batch of the file's inputs, else 1; one that is given by a flag stays. */
void inspect_batch_choose(struct inspect_batch *b, const struct graph *g);
/* A line on stdout. */
void inspect_batch_print(const struct inspect_batch *b);
/* The keys "batch" and "batch_from"; begins with a comma. */
void inspect_batch_json(const struct inspect_batch *b, struct buf *out);

#endif
