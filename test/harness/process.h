/* process.h - for tests that fork: reports failures in a child process, and ends it. */
#ifndef TEST_HARNESS_PROCESS_H
#define TEST_HARNESS_PROCESS_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
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

/* As fork(). The kernel kills the child when the test process ends. A failed assertion of cmocka ends the child: it
 * would otherwise continue with the next test, and fork in turn. */
static inline pid_t process_fork(void)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    if (pid != 0)
        return pid;
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it has ended before the call */
        _exit(2);
    return 0;
}

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
