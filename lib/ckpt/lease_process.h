/* lease_process.h - the process that holds a lease: for messages, and to recognise that it ended.
 * Threads: any. */
#ifndef CKPT_LEASE_PROCESS_H
#define CKPT_LEASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

enum { LEASE_PROCESS_BYTES = 128, LEASE_SINCE_BYTES = 24 };

struct lease_process {
    uint64_t pid;                    /* 0: unknown */
    uint64_t started;                /* clock ticks after the boot of the host; 0: unknown */
    char space[LEASE_PROCESS_BYTES]; /* boot and process namespace in which `pid` is valid; "": unknown */
    char host[LEASE_PROCESS_BYTES];  /* name of the host; "": unknown */
    char since[LEASE_SINCE_BYTES];   /* when it acquired the lease, ISO 8601, UTC; "": unknown */
};

/* Sets *out to this process and the present time. */
void lease_process_self(struct lease_process *out);
/* Returns true if the process is known to have ended: `pid` is valid here, and no process, another
 * one or a zombie has it. False: it runs, or that cannot be seen from here. */
bool lease_process_has_ended(const struct lease_process *p);

#endif
