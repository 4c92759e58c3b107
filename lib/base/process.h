/* process.h - what /proc/PID/stat says about a process of this host, and the program and the standard
 * files of this process. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROCESS_NAME_BYTES = 64 };

struct process {
    char name[PROCESS_NAME_BYTES]; /* of the program, at most 15 bytes on Linux */
    char state;                    /* 'R', 'S', ...; 'Z': a zombie */
    uint64_t parent;               /* 0: none */
    uint64_t started;              /* clock ticks after boot; with the id it identifies the process */
};

/* Returns false if the process does not exist or /proc is absent. Threads: any. */
bool process_read(uint64_t pid, struct process *out);

/* Writes to out [n] the folder that contains the program of this process, without a slash at its end. Returns false,
 * and sets errno, if /proc is absent or out is too small. Threads: any. */
bool process_folder(char *out, size_t n);

/* Opens /dev/null on each of the descriptors 0, 1 and 2 that is closed. Otherwise the next files of the
 * process have these numbers, and its log lines go into one of them. Called by main() before
 * any file is opened. If /dev/null cannot be opened, the descriptors stay closed. */
void process_open_standard_files(void);

/* Called before the program ends with exit code `code`. Writes what stdout still buffers, and returns `code`; if not all of
 * the output could be written, such as to a full disk, it reports that on stderr and returns `failure` if `code` is 0. A
 * pipe whose reader has ended (`| head`) is no failure. */
int process_close_output(const char *program, int code, int failure);

#endif
