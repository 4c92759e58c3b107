/* cpu_quota.h - the processor time that the control groups of this process allow: docker --cpus, limits.cpu of Kubernetes,
 * CPUQuota of systemd. A process with a quota of 2 on a host with 64 cores may use all of them, but for 1/32 of the time: more than
 * two busy threads are stopped in each period. Threads: any. */
#ifndef BASE_CPU_QUOTA_H
#define BASE_CPU_QUOTA_H

#include <stdint.h>

enum { CPU_QUOTA_SOURCE_BYTES = 512 };

struct cpu_quota {
    double processors; /* quota divided by period; 0: there is no quota */
    char source[CPU_QUOTA_SOURCE_BYTES]; /* the file with the smallest quota; "": none */
};

/* Reads cpu.max (version 2) and cpu.cfs_quota_us (version 1) of the group of this process and of those that contain it.
 * A file that is absent or malformed is no quota. `root` as for cgroup_find(). */
void cpu_quota_read(const char *root, struct cpu_quota *out);
/* Returns how many of `cores` cores the quota of this process keeps busy: at least 1. */
uint32_t cpu_quota_limit(uint32_t cores);

#endif
