/* storage.h - decides whether this task's storage has failed, so that another task should write the
 * checkpoints and hold the lease. Pure: the caller supplies all measurements. Any thread. */
#ifndef DAEMON_STORAGE_H
#define DAEMON_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_failure;

struct storage_seen {
    const struct ckpt_failure *ckpt; /* state of the checkpoint writer; borrowed */
    bool needs_lease;                /* this task cannot continue without the lease */
    /* time since the lease operations began to fail; 0: they work */
    uint64_t lease_ms;
    const char *lease_text;          /* reason of the failure; borrowed */
    uint64_t deadline_ms;            /* train.deadline_seconds of the job */
};

/* Returns true if the storage has failed; `text` [n] is the reason. A single failure does not
 * suffice, because the writer retries. */
bool storage_has_failed(const struct storage_seen *seen, char *text, size_t n);

#endif
