/* process.h - reads what /proc/PID/stat says about a process of this host. Threads: any. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

enum { PROCESS_NAME_BYTES = 64 };

struct process {
    char name[PROCESS_NAME_BYTES]; /* of the program, at most 15 bytes on Linux */
    char state;                    /* 'R', 'S', ...; 'Z': a zombie */
    uint64_t parent;               /* 0: none */
    uint64_t started;              /* clock ticks after boot; with the id it identifies the process */
};

/* Returns false if the process does not exist or /proc is absent. */
bool process_read(uint64_t pid, struct process *out);

#endif
