/* wait.h - waits for conditions. No other file of the C tests sleeps, and no test asserts a duration
 * (scripts/untimed): a test waits for an event, or orders events with a fault point that holds
 * ("hold", base/fault.h).
 *
 * Threads: any. */
#ifndef TEST_HARNESS_WAIT_H
#define TEST_HARNESS_WAIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "harness/sanitized.h"

/* The only limit of a wait: a guard against hanging, far above the usual duration on a busy machine. */
enum { WAIT_GUARD_S = 60 * SLOW, WAIT_GUARD_MS = 1000 * WAIT_GUARD_S };

struct wait {
    const char *what, *file;
    int line;
    uint64_t began_ns, nap_ns; /* 0: not yet */
};

/* The real monotonic time, which clock_fake() does not change. */
static inline uint64_t wait_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void wait_sleep_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
                                  .tv_nsec = (long)(ns % 1000000000u) },
              NULL);
}

/* Ends the test, or the process of a thread or of a child of the test, which can fail no test itself. */
static inline void wait_fail(const struct wait *w)
{
    fprintf(stderr, "[%d] %s:%d: not within %d s: %s\n", (int)getpid(), w->file, w->line,
            (int)WAIT_GUARD_S, w->what);
    if (syscall(SYS_gettid) != getpid())
        abort();
    _fail(w->file, w->line);
}

/* Sleeps for a short time. The wait begins with the first call. */
static inline void wait_nap(struct wait *w)
{
    if (w->nap_ns == 0) {
        w->began_ns = wait_now_ns();
        w->nap_ns = 25000;
    }
    if (w->nap_ns < 2000000)
        w->nap_ns *= 2;
    wait_sleep_ns(w->nap_ns);
}

/* Returns true after the guard, which is longer while more threads run than there are cores. */
static inline bool wait_is_over(const struct wait *w)
{
    double load = 1, cores = (double)sysconf(_SC_NPROCESSORS_ONLN),
           took_s = w->nap_ns > 0 ? (double)(wait_now_ns() - w->began_ns) / 1e9 : 0;

    if (took_s <= WAIT_GUARD_S)
        return false;
    return getloadavg(&load, 1) != 1 || load <= cores || took_s > WAIT_GUARD_S * load / cores;
}

/* Sleeps for a short time; after the guard the test fails. For a loop that does more than to wait. */
static inline void wait_poll(struct wait *w)
{
    if (wait_is_over(w))
        wait_fail(w);
    wait_nap(w);
}

#define WAIT_BEGIN(what_) ((struct wait){ .what = (what_), .file = __FILE__, .line = __LINE__ })

/* Waits until `cond_` holds. It is evaluated again and again, by this thread. */
#define WAIT_UNTIL(cond_)                                                                          \
    do {                                                                                           \
        struct wait wait_ = WAIT_BEGIN(#cond_);                                                    \
                                                                                                   \
        while (!(cond_))                                                                           \
            wait_poll(&wait_);                                                                     \
    } while (0)

/* Waits for a random time below `most_ns`. It disturbs the order of threads, or gives wrong code an
 * opportunity to fail. Contract: no assertion depends on the length; a correct program passes after
 * any, also after none. */
static inline void wait_disturb(uint64_t most_ns)
{
    uint64_t seed = wait_now_ns() * 6364136223846793005u + 1442695040888963407u;

    wait_sleep_ns((seed >> 33) % most_ns);
}

/* Lets at least `ms` of real time pass, for a value that the program measures by the clock. A test
 * asserts only that the value is at least so large: a busy machine makes it larger. */
static inline void wait_pass_ms(uint64_t ms)
{
    for (uint64_t end = wait_now_ns() + ms * 1000000u, now; (now = wait_now_ns()) < end;)
        wait_sleep_ns(end - now);
}

/* Returns true if the kernel reports the thread as sleeping: if it has one place to block in, it
 * has arrived there. `tid` 0: all threads of the process. A thread that has ended counts as sleeping. */
static inline bool wait_is_asleep(pid_t pid, pid_t tid)
{
    char path[64];
    const struct dirent *d;
    bool sleeps = true;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    while (dir != NULL && sleeps && (d = readdir(dir)) != NULL) {
        char file[400], stat[512] = "";
        const char *end;
        FILE *f;

        if (d->d_name[0] == '.' || (tid != 0 && atoi(d->d_name) != (int)tid))
            continue;
        snprintf(file, sizeof(file), "%s/%s/stat", path, d->d_name);
        f = fopen(file, "r");
        if (f == NULL)
            continue;
        end = fgets(stat, sizeof(stat), f) != NULL ? strrchr(stat, ')') : NULL;
        sleeps = end == NULL || strchr("SZX", end[2]) != NULL;
        fclose(f);
    }
    if (dir != NULL)
        closedir(dir);
    return sleeps;
}

/* Returns the number of threads of this process. */
static inline int wait_n_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    int n = 0;

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        closedir(dir);
    return n - 2; /* . and .. */
}

#endif
