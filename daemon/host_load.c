#include "daemon/host_load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"

/* The columns of proc_stat(5). The time of guests is part of user and nice. */
enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, COLUMNS };

bool host_load_parse(const char *text, struct host_load *out)
{
    uint64_t columns[COLUMNS], all = 0;

    if (strncmp(text, "cpu ", 4) != 0)
        return false;
    text += 4;
    for (int i = 0; i < COLUMNS; i++) {
        char *end;

        text += strspn(text, " ");
        if (*text < '0' || *text > '9')
            return false;
        columns[i] = strtoull(text, &end, 10);
        if (columns[i] > UINT64_MAX / (2 * COLUMNS))
            return false;
        all += columns[i];
        text = end;
    }
    out->all = all;
    out->stolen = columns[STEAL];
    out->storage = columns[IOWAIT];
    out->busy = all - columns[IDLE] - columns[IOWAIT] - columns[STEAL];
    return true;
}

uint64_t host_load_parse_delay(const char *text)
{
    unsigned long long ran, waited;

    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

uint64_t host_load_read_delay(void)
{
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    char text[128];
    ssize_t n;

    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    return host_load_parse_delay(text);
}

static uint64_t ticks(const struct timeval *t, uint64_t per_second)
{
    return (uint64_t)t->tv_sec * per_second + (uint64_t)t->tv_usec * per_second / 1000000;
}

bool host_load_read(struct host_load *out)
{
    uint64_t per_second = (uint64_t)sysconf(_SC_CLK_TCK);
    int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    struct rusage use;
    char text[256];
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0 || getrusage(RUSAGE_SELF, &use) != 0)
        return false;
    text[n] = '\0';
    out->own = ticks(&use.ru_utime, per_second) + ticks(&use.ru_stime, per_second);
    return host_load_parse(text, out);
}

static double part(uint64_t of, uint64_t all)
{
    return all > 0 && of <= all ? (double)of / (double)all : 0;
}

struct host_load_parts host_load_between(const struct host_load *from, const struct host_load *to)
{
    uint64_t all = to->all > from->all ? to->all - from->all : 0;
    uint64_t busy = to->busy - from->busy, own = to->own - from->own;

    return (struct host_load_parts){ .others = busy > own ? part(busy - own, all) : 0,
                                     .steal = part(to->stolen - from->stolen, all),
                                     .storage = part(to->storage - from->storage, all) };
}
