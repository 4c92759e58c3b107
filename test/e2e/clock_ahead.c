/* clock_ahead.c - preloaded into a process, sets its wall clock 90 s ahead. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { AHEAD_S = 90 };

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);

    if (rc == 0 && id == CLOCK_REALTIME)
        t->tv_sec += AHEAD_S;
    return rc;
}
