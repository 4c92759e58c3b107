#include "daemon/storage.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "ckpt/ckpt.h"

enum {
    FAILURES = 2,       /* of the checkpoint writer in a row */
    LEASE_MS = 2000,    /* less than a lease is held without a renewal (MEMBER_HOLD_MS) */
    STALL_MS_MIN = 2000,
    STALLS_PER_DEADLINE = 4, /* one operation on the storage may take this part of train.deadline_seconds */
};

bool storage_has_failed(const struct storage_seen *seen, char *text, size_t n)
{
    uint64_t stall_ms = seen->deadline_ms / STALLS_PER_DEADLINE;

    if (stall_ms < STALL_MS_MIN)
        stall_ms = STALL_MS_MIN;
    /* What reads back wrong ends this task (save_check_storage()). */
    if ((seen->ckpt->failures >= FAILURES && seen->ckpt->code != ERR_CORRUPT) || seen->ckpt->stalled_ms >= stall_ms) {
        snprintf(text, n, "%s", seen->ckpt->text);
        return true;
    }
    if (seen->needs_lease && seen->lease_ms >= LEASE_MS) {
        snprintf(text, n, "the lease has not been renewed or taken for %" PRIu64 " ms: %s", seen->lease_ms,
                 seen->lease_text);
        return true;
    }
    return false;
}
