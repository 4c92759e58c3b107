/* probe_storage.h - whether all tasks see the same storage: each task writes a file of its own, and
 * looks for those of the others. A lock is a name that only one task can create, with link() or, on a file system without hard
 * links, with O_EXCL, as for the lease.
 *
 * The names are .preflight-<rank>-<nonce>; they exist from storage_begin() to storage_end().
 * Threads: any; one caller at a time for each struct. */
#ifndef PREFLIGHT_PROBE_STORAGE_H
#define PREFLIGHT_PROBE_STORAGE_H

#include <stdint.h>

#include "preflight/types.h"

struct storage_id { /* whose file */
    uint32_t rank;
    uint64_t nonce;
};

/* Creates the directory if needed, writes the own file, syncs and renames it, and creates the lock.
 * Sets *sync_us to the duration. `fault` [PREFLIGHT_TEXT_BYTES] is the reason of a failure, "" on
 * success; a storage that does not answer within `ms` is a failure. */
void storage_begin(const char *directory, struct storage_id self, uint32_t ms, uint32_t *sync_us,
                   char *fault);
/* Sets *file and *lock (enum preflight_check): the file of the other task is seen, and the own task
 * cannot create the other's lock. */
void storage_look(const char *directory, struct storage_id self, struct storage_id other,
                  uint32_t ms, uint8_t *file, uint8_t *lock);
/* Removes the own names. */
void storage_end(const char *directory, struct storage_id self, uint32_t ms);

#endif
