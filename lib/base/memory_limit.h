/* memory_limit.h - the memory that this process may use: which limit it reaches first, and how much
 * of that limit is in use.
 *
 * Limits are memory.max (cgroup version 2) or memory.limit_in_bytes (version 1) of the control group
 * of this process and of every group that contains it, the memory of the host, and RLIMIT_AS and
 * RLIMIT_DATA. Other processes may use the memory of a group or of the host too, so the limit that is
 * reached first is the one with the fewest bytes left; it is the smallest limit wherever this process
 * is alone. Threads: any. */
#ifndef BASE_MEMORY_LIMIT_H
#define BASE_MEMORY_LIMIT_H

#include <stdint.h>

struct err;

enum memory_limit_kind {
    MEMORY_LIMIT_CGROUP,    /* the kernel kills a process of the group at the limit */
    MEMORY_LIMIT_HOST,      /* the kernel kills a process of the host */
    MEMORY_LIMIT_DATA,      /* RLIMIT_DATA: requests for writable memory fail */
    MEMORY_LIMIT_ADDRESSES, /* RLIMIT_AS: requests for addresses fail, used or not */
};

enum { MEMORY_LIMIT_SOURCE_BYTES = 512, MEMORY_LIMIT_IGNORED_BYTES = 1024 };

struct memory_limit {
    enum memory_limit_kind kind;
    uint64_t bytes; /* the limit */
    /* Counted against the limit, of all processes. CGROUP: memory.current without inactive_file, which
     * the kernel frees first. HOST: MemTotal without MemAvailable. DATA: VmData. ADDRESSES: VmSize. */
    uint64_t used;
    uint64_t resident; /* VmRSS of this process; 0: unknown */
    /* SwapTotal, to which the kernel can move memory before it kills; 0 for DATA and ADDRESSES. A group
     * may be allowed less. */
    uint64_t swap;
    char source[MEMORY_LIMIT_SOURCE_BYTES]; /* "cgroup /sys/fs/cgroup/a/memory.max" */
    /* Why a limit was not considered: its file, or that of its use, is malformed or cannot be read.
     * The first such file; empty: none. An absent file or control group is no limit. */
    char ignored[MEMORY_LIMIT_IGNORED_BYTES];
};

/* Reads the limits again, in less than a millisecond. `root` as for cgroup_find(). On failure *out
 * is unchanged. Errors: ERR_NOENT: no limit is known; the text states why. */
int memory_limit_read(const char *root, struct memory_limit *out, struct err *err);

#endif
