/* storage.h - decides whether this task's storage has failed: whether another task should write the checkpoints and
 * hold the lease. Pure: the caller measures.
 *
 * Threads: the loop's. */
#ifndef DAEMON_STORAGE_H
#define DAEMON_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_trouble;

struct storage_seen {
    const struct ckpt_trouble *ckpt; /* of the checkpoint writer */
    bool needs_lease;                /* without the lease this task cannot go on */
    uint64_t lease_ms;               /* for how long the lease operations have failed; 0: they work */
    const char *lease_text;          /* the reason */
    uint64_t deadline_ms;            /* of the job */
};

/* true: the storage has failed; `text` [n] is the reason. A single failure is not enough: the writer tries again. */
bool storage_has_failed(const struct storage_seen *seen, char *text, size_t n);

#endif
