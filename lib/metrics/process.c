/* process.c - the series of this process that every Prometheus client library has, from /proc. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "metrics/metrics.h"

static void print(struct buf *out, const char *name, const char *kind, const char *help, double v)
{
    if (v < 0) /* unknown */
        return;
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s ", name, help, name, kind, name);
    buf_f64(out, v);
    buf_str(out, "\n");
}

/* Reads /proc/self/stat, whose second field, the name of the process in parentheses, may hold blanks.
 * Writes field number k (from 3 on, proc(5)) to out[k]; 0: it is missing. */
static void read_stat(double out[25])
{
    FILE *f = fopen("/proc/self/stat", "re");
    char line[1024] = "", *at, *rest;
    int field = 3;

    memset(out, 0, 25 * sizeof(*out));
    if (f == NULL)
        return;
    if (fgets(line, sizeof(line), f) == NULL)
        line[0] = '\0';
    fclose(f);
    at = strrchr(line, ')');
    for (at = at != NULL ? strtok_r(at + 1, " ", &rest) : NULL; at != NULL && field < 25;
         at = strtok_r(NULL, " ", &rest))
        out[field++] = strtod(at, NULL);
}

/* Seconds since 1970 at which the system was started; 0: unknown. */
static double boot_seconds(void)
{
    struct timespec now, up;

    if (clock_gettime(CLOCK_REALTIME, &now) < 0 || clock_gettime(CLOCK_BOOTTIME, &up) < 0)
        return 0;
    return (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) / 1e9;
}

static double count_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    double n = -3; /* ".", ".." and the folder itself */

    if (d == NULL)
        return -1;
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

void metrics_print_process(struct buf *out)
{
    enum { UTIME = 14, STIME = 15, THREADS = 20, START = 22, VSIZE = 23, RSS = 24 };
    /* A start is printed as the same number in every scrape, although both clocks move. */
    static _Atomic double started = 0;
    double stat[25], ticks = (double)sysconf(_SC_CLK_TCK), boot = boot_seconds(),
                     page = (double)sysconf(_SC_PAGESIZE);
    struct rlimit files;

    read_stat(stat);
    if (started == 0 && boot > 0)
        started = boot + stat[START] / ticks;
    if (stat[VSIZE] > 0) {
        print(out, "process_cpu_seconds_total", "counter",
              "Processor time of this process, user and system.",
              (stat[UTIME] + stat[STIME]) / ticks);
        print(out, "process_resident_memory_bytes", "gauge", "Resident memory.", stat[RSS] * page);
        print(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", stat[VSIZE]);
        print(out, "process_threads", "gauge", "Threads.", stat[THREADS]);
    }
    print(out, "process_open_fds", "gauge", "Open file descriptors.", count_files());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
        print(out, "process_max_fds", "gauge", "Limit of open file descriptors.",
              (double)files.rlim_cur);
    if (started > 0)
        print(out, "process_start_time_seconds", "gauge",
              "Start of the process, seconds since 1970.", started);
}
