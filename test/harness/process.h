/* process.h - for tests that fork: reports failures in a child process, and ends it. */
#ifndef TEST_HARNESS_PROCESS_H
#define TEST_HARNESS_PROCESS_H

#include <stdio.h>
#include <unistd.h>

#include "harness/sanitized.h"

/* Prints a failed condition and exits the process with 1; the waiting test then fails. */
#define EXPECT(cond_, ...)                                                                         \
    do {                                                                                           \
        if (!(cond_)) {                                                                            \
            fprintf(stderr, "[%d] %s:%d: not so: %s: ", (int)getpid(), __FILE__, __LINE__,         \
                    #cond_);                                                                       \
            fprintf(stderr, "" __VA_ARGS__);                                                       \
            fprintf(stderr, "\n");                                                                 \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#if SANITIZED_ADDRESS
int __lsan_do_recoverable_leak_check(void);
#endif

/* Exits with 0; a sanitized build exits with 23 if it finds leaks. */
static inline _Noreturn void process_end(void)
{
#if SANITIZED_ADDRESS
    if (__lsan_do_recoverable_leak_check() != 0)
        _exit(23);
#endif
    _exit(0);
}

#endif
