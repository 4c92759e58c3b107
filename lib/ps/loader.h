/* loader.h - background work (background.h): reads the rows of some shards of a store from a checkpoint, whatever
 * its layout (ckpt/rows.h). Each server first reads all files and compares them with the manifest, because other servers
 * may see other bytes; then it reads the ranges that it needs, and compares them with what was verified. Rows between
 * the ranges are read too where that is faster than another operation.
 *
 * Fault point: ps.load: before each range is read. Threads: the owner's. */
#ifndef PS_LOADER_H
#define PS_LOADER_H

#include <stdint.h>

struct ps_background;
struct ps_store;

struct ps_load_job {
    struct ps_store *store; /* borrowed until ps_background_stop() */
    uint32_t n_tables;
    const uint64_t *rows;   /* [n_tables] copied */
    const uint32_t *widths; /* [n_tables] copied */
    const char *folder;     /* of the checkpoint; copied; NULL: the job of this task has no directory, so it fails */
    const uint64_t *shards; /* [PS_SET_WORDS] copied; the store holds them all */
};

/* The caller owns the result, as work that ps_background_stop() ends. NULL: out of memory. */
struct ps_background *ps_loader_start(const struct ps_load_job *job);

#endif
