/* host_load.h - what other processes and the hypervisor take of the processor time of this host.
 * Threads: one at a time. */
#ifndef DAEMON_HOST_LOAD_H
#define DAEMON_HOST_LOAD_H

#include <stdbool.h>
#include <stdint.h>

/* Times of all processors since the boot, in clock ticks (1/100 s), and of this process. */
struct host_load {
    uint64_t all, busy, stolen; /* busy: of this host, without stolen time */
    uint64_t storage;           /* idle while a process of the processor waited for storage */
    uint64_t own;
};

/* Parts of the processor time of the host, 0 to 1. */
struct host_load_parts {
    double others, steal, storage;
};

/* Parses the first line of /proc/stat. Sets all fields but `own`. Returns false if the text has another
 * form. */
bool host_load_parse(const char *text, struct host_load *out);
/* Returns false where /proc/stat cannot be read. */
bool host_load_read(struct host_load *out);
/* Parses the text of /proc/thread-self/schedstat: returns the nanoseconds for which the thread was ready and waited for a
 * processor, also because of a quota; 0 if the text has another form. */
uint64_t host_load_parse_delay(const char *text);
/* Returns these nanoseconds of the calling thread; 0 where the kernel does not count them. */
uint64_t host_load_read_delay(void);
/* Returns the parts between two readings. */
struct host_load_parts host_load_between(const struct host_load *from, const struct host_load *to);

#endif
