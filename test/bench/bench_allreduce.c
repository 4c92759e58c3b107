/* bench_allreduce - measures one all-reduce of float32 between processes of this machine.
 *
 *   bench_allreduce [--ranks N] [--hosts N | --tcp] [--open] [--bytes N,...]
 *
 * Starts N processes with one rank each. --hosts: simulates that number of hosts; --tcp: uses TCP
 * over loopback instead of shared memory. Prints for each size the median over the repetitions of
 * the time of the slowest rank, in microseconds, and the size of the vector divided by that time,
 * in GB/s. --open: measures instead the time to open the next generation with arenas of the largest
 * size, and the time of its first two all-reduces of that size: medians of the slowest rank, in
 * microseconds. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "comm/comm.h"
#include "device/device.h"

enum { RANKS_MAX = 64, SIZES_MAX = 16, REPEATS_MAX = 2000, REPEATS_MIN = 15, OPENINGS = 41 };

struct plan {
    uint32_t n_ranks, n_hosts, n_sizes;
    bool tcp, open;
    size_t bytes[SIZES_MAX];
};

/* In shared memory. Each rank writes its own entries; they are read after all ranks have ended. */
struct table {
    char address[RANKS_MAX][80];
    uint64_t ns[SIZES_MAX][RANKS_MAX][REPEATS_MAX];
};

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_allreduce [--ranks N] [--hosts N | --tcp] [--open] [--bytes N,...]\n"
            "N ranks from 1 to %d, at most %d sizes, each a multiple of 4 bytes\n",
            RANKS_MAX, SIZES_MAX);
    return 2;
}

static bool parse_sizes(const char *text, struct plan *p)
{
    p->n_sizes = 0;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long long n;

        errno = 0;
        n = strtoull(at, &end, 10);
        if (errno != 0 || end == at || n == 0 || n % 4 != 0 || n > (1ull << 34) ||
            p->n_sizes == SIZES_MAX)
            return false;
        p->bytes[p->n_sizes++] = n;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        at = end;
    }
}

static bool parse(int argc, char **argv, struct plan *p)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tcp") == 0)
            p->tcp = true;
        else if (strcmp(argv[i], "--open") == 0)
            p->open = true;
        else if (strcmp(argv[i], "--hosts") == 0 && i + 1 < argc)
            p->n_hosts = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            p->n_ranks = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--bytes") != 0 || i + 1 == argc || !parse_sizes(argv[++i], p))
            return false;
    }
    return p->n_ranks >= 1 && p->n_ranks <= RANKS_MAX && p->n_hosts >= 1 &&
           p->n_ranks % p->n_hosts == 0 && p->n_hosts <= 10;
}

static uint32_t repeats(size_t bytes)
{
    size_t n = ((size_t)1 << 30) / (bytes + (1 << 16)) + REPEATS_MIN;

    return n < REPEATS_MAX ? (uint32_t)n : REPEATS_MAX;
}

static int measure(const struct plan *p, struct table *t, uint32_t rank, struct comm *c, void *data,
                   struct err *err)
{
    for (uint32_t s = 0; s < p->n_sizes; s++) {
        uint32_t n = repeats(p->bytes[s]);

        memset(data, 0, p->bytes[s]);
        for (uint32_t i = 0; i < n + n / 5; i++) { /* the first n / 5 calls are warm-up */
            uint64_t start;

            if (comm_barrier(c, 0, err) < 0)
                return err->code;
            start = clock_ns();
            if (comm_all_reduce(c, 0, data, p->bytes[s] / 4, TENSOR_F32, COMM_SUM, err) < 0)
                return err->code;
            if (i >= n / 5)
                t->ns[s][rank][i - n / 5] = clock_ns() - start;
        }
    }
    return 0;
}

static int connect_one(const struct comm_opts *o, struct comm **out, struct err *err)
{
    int rc = comm_open(o, out, err);

    if (rc == 0) {
        rc = comm_connect(*out, err);
        if (rc < 0)
            comm_close(*out);
    }
    return rc;
}

/* Opens one generation after another. Row 0: the time to connect; rows 1 and 2: the first two
 * calls. */
static int measure_open(struct table *t, struct comm_opts *o, size_t bytes, struct comm **c,
                        struct err *err)
{
    for (uint32_t i = 0; i < OPENINGS; i++) {
        int rc = comm_barrier(*c, 0, err);
        uint64_t at = clock_ns();

        comm_close(*c);
        *c = NULL;
        o->view.generation++;
        if (rc == 0)
            rc = connect_one(o, c, err);
        for (uint32_t k = 0; k < 3 && rc == 0; k++) {
            t->ns[k][o->view.self][i] = clock_ns() - at;
            at = clock_ns();
            if (k < 2)
                rc = comm_all_reduce(*c, 0, o->arena->base, bytes / 4, TENSOR_F32, COMM_SUM, err);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int child(const struct plan *p, struct table *t, uint32_t rank, struct comm_listener *l)
{
    static char hosts[10][160];
    struct group_member members[RANKS_MAX];
    struct comm_opts o = { .view.generation = 1,
                           .view.members = members,
                           .view.n_members = p->n_ranks,
                           .view.self = rank,
                           .listener = l,
                           .shared_memory = !p->tcp,
                           .deadline_ms = 60000 };
    struct device_mem arena;
    struct comm *c = NULL;
    struct err err;
    struct device slots[DEVICE_MAX];
    uint32_t n_slots;
    size_t most = 0;
    int rc = device_parse("cpu", rank, slots, &n_slots, &err);

    if (rc == 0 && p->n_ranks <= n_slots) /* one core per rank, as for the replicas of a job */
        rc = device_enter(&slots[0], &err);

    for (uint32_t s = 0; s < p->n_sizes; s++)
        most = p->bytes[s] > most ? p->bytes[s] : most;
    for (uint32_t i = 0; i < p->n_hosts; i++)
        snprintf(hosts[i], sizeof(hosts[i]), "%u %s", i, comm_host_key());
    for (uint32_t i = 0; i < p->n_ranks; i++)
        members[i] = (struct group_member){ .name = "bench",
                                            .host_key = hosts[i / (p->n_ranks / p->n_hosts)],
                                            .data_address = t->address[i],
                                            .n_devices = 1 };
    if (rc == 0)
        rc = device_mem_open(&arena, most, true, &err);
    o.arena = &arena;
    if (rc == 0)
        rc = connect_one(&o, &c, &err);
    if (rc == 0) {
        if (rank == 0)
            printf("# %s\n", comm_describe(c)), fflush(stdout);
        memset(arena.base, 0, most);
        rc = p->open ? measure_open(t, &o, most, &c, &err)
                     : measure(p, t, rank, c, arena.base, &err);
        comm_close(c);
    }
    if (rc < 0)
        fprintf(stderr, "rank %u: %s\n", rank, err.text);
    return rc < 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Returns the median over n repetitions of the time of the slowest rank. */
static uint64_t median(const struct plan *p, struct table *t, uint32_t row, uint32_t n)
{
    uint64_t *slowest = t->ns[row][0];

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 1; r < p->n_ranks; r++)
            if (t->ns[row][r][i] > slowest[i])
                slowest[i] = t->ns[row][r][i];
    qsort(slowest, n, sizeof(*slowest), by_value);
    return slowest[n / 2];
}

static void report(const struct plan *p, struct table *t)
{
    printf("%12s %12s %10s\n", "bytes", "us", "GB/s");
    for (uint32_t s = 0; s < p->n_sizes; s++) {
        uint64_t ns = median(p, t, s, repeats(p->bytes[s]));

        printf("%12zu %12.2f %10.2f\n", p->bytes[s], (double)ns / 1e3,
               (double)p->bytes[s] / (double)ns);
    }
}

static void report_open(const struct plan *p, struct table *t)
{
    static const char *const rows[] = { "open", "first call", "second call" };

    for (uint32_t k = 0; k < 3; k++)
        printf("%12s %12.2f\n", rows[k], (double)median(p, t, k, OPENINGS) / 1e3);
}

int main(int argc, char **argv)
{
    struct plan p = { .n_ranks = 2,
                      .n_hosts = 1,
                      .n_sizes = 5,
                      .bytes = { 1024, 65536, 1048576, 25000000, 100000000 } };
    struct comm_listener *listeners[RANKS_MAX];
    struct table *t;
    struct err err;
    int status, failed = 0;

    if (!parse(argc, argv, &p))
        return usage();
    t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (uint32_t i = 0; i < p.n_ranks; i++) {
        if (comm_listener_open("127.0.0.1", 0, 0, NULL, &listeners[i], &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        snprintf(t->address[i], sizeof(t->address[i]), "%s", comm_listener_address(listeners[i]));
    }
    for (uint32_t i = 0; i < p.n_ranks; i++)
        if (fork() == 0)
            _exit(child(&p, t, i, listeners[i]));
    while (wait(&status) > 0)
        failed |= status != 0;
    if (failed == 0)
        (p.open ? report_open : report)(&p, t);
    return failed;
}
