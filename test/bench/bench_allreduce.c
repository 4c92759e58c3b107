/* bench_allreduce - the time of one all-reduce of float32 between processes of this machine.
 *
 *   bench_allreduce [--ranks N] [--tcp] [--bytes N,...]
 *
 * N processes of one rank each; --tcp: no shared memory, everything over loopback. Prints per
 * size the median over the repetitions of the slowest rank, in microseconds, and the size of
 * the vector divided by that, in GB/s. */
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

enum { RANKS_MAX = 64, SIZES_MAX = 16, REPEATS_MAX = 2000, REPEATS_MIN = 15 };

struct plan {
    uint32_t n_ranks, n_sizes;
    bool tcp;
    size_t bytes[SIZES_MAX];
};

/* Written by the rank that owns it, read when all are done. */
struct table {
    char address[RANKS_MAX][80];
    uint64_t ns[SIZES_MAX][RANKS_MAX][REPEATS_MAX];
};

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_allreduce [--ranks N] [--tcp] [--bytes N,...]\n"
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
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            p->n_ranks = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--bytes") != 0 || i + 1 == argc || !parse_sizes(argv[++i], p))
            return false;
    }
    return p->n_ranks >= 1 && p->n_ranks <= RANKS_MAX;
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
        for (uint32_t i = 0; i < n + n / 5; i++) { /* the first fifth warms up */
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

static int child(const struct plan *p, struct table *t, uint32_t rank, struct comm_listener *l)
{
    struct comm_member members[RANKS_MAX];
    struct comm_opts o = { .generation = 1,
                           .members = members,
                           .n_members = p->n_ranks,
                           .self = rank,
                           .listener = l,
                           .shared_memory = !p->tcp,
                           .deadline_ms = 60000 };
    struct device_mem arena;
    struct comm *c;
    struct err err;
    struct device slots[DEVICE_MAX];
    uint32_t n_slots;
    size_t most = 0;
    int rc = device_parse("cpu", rank, slots, &n_slots, &err);

    if (rc == 0 && p->n_ranks <= n_slots) /* a core each, as the replicas of a job have */
        rc = device_enter(&slots[0], &err);

    for (uint32_t s = 0; s < p->n_sizes; s++)
        most = p->bytes[s] > most ? p->bytes[s] : most;
    for (uint32_t i = 0; i < p->n_ranks; i++)
        members[i] = (struct comm_member){ "bench", comm_host_key(), t->address[i], 1 };
    if (rc == 0)
        rc = device_mem_open(&arena, most, true, &err);
    o.arena = &arena;
    if (rc == 0)
        rc = comm_open(&o, &c, &err);
    if (rc == 0)
        rc = comm_connect(c, &err);
    if (rc == 0) {
        if (rank == 0)
            printf("# %s\n", comm_describe(c)), fflush(stdout);
        rc = measure(p, t, rank, c, arena.base, &err);
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

static void report(const struct plan *p, struct table *t)
{
    printf("%12s %12s %10s\n", "bytes", "us", "GB/s");
    for (uint32_t s = 0; s < p->n_sizes; s++) {
        uint32_t n = repeats(p->bytes[s]);
        uint64_t *slowest = t->ns[s][0];

        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 1; r < p->n_ranks; r++)
                if (t->ns[s][r][i] > slowest[i])
                    slowest[i] = t->ns[s][r][i];
        qsort(slowest, n, sizeof(*slowest), by_value);
        printf("%12zu %12.2f %10.2f\n", p->bytes[s], (double)slowest[n / 2] / 1e3,
               (double)p->bytes[s] / (double)slowest[n / 2]);
    }
}

int main(int argc, char **argv)
{
    struct plan p = { .n_ranks = 2,
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
        if (comm_listener_open("127.0.0.1", 0, &listeners[i], &err) < 0) {
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
        report(&p, t);
    return failed;
}
