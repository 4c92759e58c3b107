#include "daemon/storage.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "ckpt/ckpt.h"

enum {
    FAILURES = 2,       /* consecutive failures of the checkpoint writer */
    LEASE_MS = 2000,    /* less than MEMBER_HOLD_MS, for which a lease is held without a renewal */
    STALL_MS_MIN = 2000,
    STALLS_PER_DEADLINE = 4, /* a storage operation may take deadline_ms / STALLS_PER_DEADLINE */
};

bool storage_has_failed(const struct storage_seen *seen, char *text, size_t n)
{
    uint64_t stall_ms = seen->deadline_ms / STALLS_PER_DEADLINE;

    if (stall_ms < STALL_MS_MIN)
        stall_ms = STALL_MS_MIN;
    /* ERR_CORRUPT is excluded: a checkpoint that does not verify ends this task
     * (save_check_storage()). */
    if ((seen->ckpt->failures >= FAILURES && seen->ckpt->code != ERR_CORRUPT) ||
        seen->ckpt->stalled_ms >= stall_ms) {
        snprintf(text, n, "%s", seen->ckpt->text);
        return true;
    }
    if (seen->needs_lease && seen->lease_ms >= LEASE_MS) {
        snprintf(text, n, "the lease has not been renewed or acquired for %" PRIu64 " ms: %s",
                 seen->lease_ms, seen->lease_text);
        return true;
    }
    return false;
}
