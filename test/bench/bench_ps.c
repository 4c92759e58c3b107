/* bench_ps - measures how many rows of an embedding table training ranks read from a parameter server, and
 * push gradients of, per second, through shared memory or over TCP on loopback.
 *
 *   bench_ps [--ranks N] [--threads N] [--rows N] [--width N] [--ids N] [--steps N] [--dense N] [--tcp 0|1] [--bound N]
 *
 * Starts a process for each rank and one for a parameter server with `threads` service threads. In each step every rank looks
 * up `ids` random rows and pushes as many gradients; the server updates the rows by SGD; all ranks wait for the
 * step. With --dense a step reads N floats, in 8 dense parameters, and pushes their gradients instead. With --bound the
 * ranks run asynchronously, at most N steps apart (ps/units.h): each gradient is an update of its own.
 * Prints the rows per second that all ranks read and push together, the time of a step, and the
 * medians of the parts of a step on rank 0, in microseconds. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/clones.h"
#include "base/err.h"
#include "comm/comm.h"
#include "device/device.h"
#include "ps/client.h"
#include "ps/leader.h"
#include "ps/port.h"
#include "ps/route.h"
#include "ps/ps.h"
#include "ps/wants.h"
#include "tensor/packed.h"

enum { DENSE = 8 /* parameters */, RANKS_MAX = 16, STEPS_MAX = 100000, WARM = 20, DEADLINE_MS = 60000 };

/* The parts of a step. DRAW is not part of it. */
enum { DRAW, RESOLVE, FETCH, MARK, PUSH, DECIDE, COMMIT, PARTS };
static const char *const names[PARTS] = { "draw", "resolve", "fetch", "mark", "push", "decide", "commit" };

struct plan {
    uint32_t n_ranks, n_threads, n_steps, width;
    uint32_t bound; /* 0: all ranks wait for each step */
    uint64_t rows;
    bool tcp; /* no shared memory */
    size_t ids, dense; /* dense: floats of a dense parameter; 0: none */
    char address[RANKS_MAX + 1][80]; /* the last one: of the server */
};

static int usage(void)
{
    fprintf(stderr, "usage: bench_ps [--ranks N] [--threads N] [--rows N] [--width N] [--ids N] [--steps N]\n"
                    "       [--dense N] [--tcp 0|1] [--bound N]\n"
                    "N ranks from 1 to %d, at most %d steps\n",
            RANKS_MAX, STEPS_MAX);
    return 2;
}

static bool parse(int argc, char **argv, struct plan *p)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long long n = strtoull(argv[i + 1], NULL, 10);

        if (strcmp(argv[i], "--ranks") == 0)
            p->n_ranks = (uint32_t)n;
        else if (strcmp(argv[i], "--threads") == 0)
            p->n_threads = (uint32_t)n;
        else if (strcmp(argv[i], "--rows") == 0)
            p->rows = n;
        else if (strcmp(argv[i], "--width") == 0)
            p->width = (uint32_t)n;
        else if (strcmp(argv[i], "--ids") == 0)
            p->ids = n;
        else if (strcmp(argv[i], "--dense") == 0)
            p->dense = n / DENSE;
        else if (strcmp(argv[i], "--tcp") == 0)
            p->tcp = n != 0;
        else if (strcmp(argv[i], "--bound") == 0)
            p->bound = (uint32_t)n;
        else if (strcmp(argv[i], "--steps") == 0)
            p->n_steps = (uint32_t)n;
        else
            return false;
    }
    return argc % 2 == 1 && p->n_ranks >= 1 && p->n_ranks <= RANKS_MAX && p->n_threads >= 1 &&
           p->n_threads <= RANKS_MAX && p->n_steps >= 1 && p->n_steps <= STEPS_MAX && p->rows > 0 &&
           p->width > 0 && p->ids > 0 && p->bound <= PS_BOUND_MAX;
}

static struct group_view view_of(const struct plan *p, struct group_member *members, uint32_t self)
{
    for (uint32_t i = 0; i <= p->n_ranks; i++)
        members[i] =
            (struct group_member){ .rank = i,
                                   .name = "bench",
                                   .host_key = comm_host_key(),
                                   .data_address = p->address[i],
                                   .n_devices = i < p->n_ranks,
                                   .n_servers = i < p->n_ranks ? 0 : p->n_threads };
    return (struct group_view){
        .generation = 1, .members = members, .n_members = p->n_ranks + 1, .self = self
    };
}

struct rank {
    const struct plan *plan;
    uint32_t self;
    struct comm *comm;
    struct ps_route route;
    struct ps_port port;
    struct ps_client *client;
    struct ps_leader *leader;
    int64_t *ids;
    struct packed marks;
    float *dense[DENSE];
    float *values, *word; /* word: in the arena of the communicator */
    uint64_t random, after; /* after: the newest step that is known to be complete, with a bound */
    uint32_t *us[PARTS]; /* [n_steps] */
};

static int connect_group(struct rank *r, struct comm_listener *l, const struct device_mem *arena,
                         struct err *err)
{
    struct group_member members[RANKS_MAX + 1];
    struct comm_opts o = { .view = view_of(r->plan, members, r->self),
                           .listener = l,
                           .arena = arena,
                           .shared_memory = !r->plan->tcp,
                           .deadline_ms = DEADLINE_MS };
    int rc;

    ps_route_make(&o.view, 1, &r->route);
    rc = comm_open(&o, &r->comm, err);
    if (rc < 0)
        return rc;
    r->port = ps_comm_port(r->comm, 0);
    return comm_connect(r->comm, err);
}

/* ---- the server ---- */

/* In the last thread of the server, which ends its process. */
static void on_end(void *arg, bool is_complete, bool is_aborted, int code, const char *text)
{
    (void)arg, (void)is_aborted;
    if (code < 0)
        fprintf(stderr, "server: %s\n", text);
    _exit(!is_complete);
}

static int serve(const struct plan *p, struct comm_listener *l, struct err *err)
{
    struct group_member members[RANKS_MAX + 1];
    struct ps_group g = { .view = view_of(p, members, p->n_ranks),
                          .listener = l,
                          .shared_memory = !p->tcp,
                          .deadline_ms = DEADLINE_MS,
                          .on_end = on_end };
    struct ps *ps;
    int rc = ps_open(&(struct ps_opts){ .n_servers = p->n_threads }, &ps, err);

    if (rc == 0)
        rc = ps_start(ps, &g, err);
    if (rc < 0)
        return rc;
    for (;;)
        pause();
}

/* ---- a rank ---- */

static int source(void *arg, uint32_t table, uint32_t part, uint64_t first, uint64_t n, float *out,
                  struct err *err)
{
    const struct plan *p = arg;

    (void)table, (void)part, (void)first, (void)err;
    memset(out, 0, n * (p->dense > 0 ? PS_DENSE_WIDTH : p->width) * sizeof(*out));
    return 0;
}

static int begin(struct rank *r, struct err *err)
{
    const struct plan *p = r->plan;
    struct ps_table tables[DENSE];
    struct optim_hyper hyper = { .learning_rate = 1 };
    struct ps_settled settled = { 0 };
    uint32_t first_shards[DENSE], widths[DENSE], n = p->dense > 0 ? DENSE : 1;
    size_t rooms[DENSE] = { p->dense > 0 ? 0 : p->ids }, elements[DENSE];
    int rc;

    for (uint32_t i = 0; i < n; i++) {
        elements[i] = p->dense;
        first_shards[i] = ps_first_shard(i);
        widths[i] = p->dense > 0 ? PS_DENSE_WIDTH : p->width;
        tables[i] = (struct ps_table){ .name = "t",
                                       .rows = p->dense > 0 ? ps_dense_rows(p->dense) : p->rows,
                                       .width = widths[i],
                                       .first_shard = first_shards[i],
                                       .rate_factor = 1,
                                       .is_dense = p->dense > 0 };
    }
    rc = ps_client_open(&(struct ps_client_opts){ .n_tables = n,
                                                  .widths = widths,
                                                  .first_shards = first_shards,
                                                  .rooms = rooms,
                                                  .n_dense = p->dense > 0 ? n : 0,
                                                  .elements = elements },
                        &r->client, err);

    if (rc == 0)
        rc =
            ps_client_begin_generation(r->client, &r->port, r->self, &r->route, r->self, 1, 0, err);
    if (rc == 0)
        rc = ps_leader_open(&(struct ps_leader_opts){ .tables = tables,
                                                      .n_tables = n,
                                                      .optimizer = OPTIM_SGD,
                                                      .hyper = &hyper,
                                                      .n_lanes = p->bound > 0 ? p->n_ranks : 0,
                                                      .bound = p->bound },
                            &r->leader, err);
    if (rc == 0 && r->self == 0)
        rc = ps_leader_settle(
            r->leader, &r->port, &r->route,
            &(struct ps_settlement){ .step = 0, .source = source, .arg = (void *)(uintptr_t)p },
            &settled, err);
    if (rc == 0 && r->self == 0 && p->bound > 0)
        rc = ps_client_limit(r->client, p->n_steps + WARM, err);
    return rc == 0 ? comm_barrier(r->comm, 0, err) : rc;
}

static void draw(struct rank *r)
{
    for (size_t i = 0; i < r->plan->ids; i++) {
        r->random ^= r->random << 13;
        r->random ^= r->random >> 7;
        r->random ^= r->random << 17;
        r->ids[i] = (int64_t)(r->random % r->plan->rows);
    }
}

CLONES static void write_gradients(float *restrict to, const float *restrict rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = rows[i] * 1e-3f + 1e-6f;
}

/* As backward: marks the slots, and writes the gradient of each. */
static void mark(struct rank *r)
{

    packed_clear(&r->marks);
    for (size_t i = 0; i < r->plan->ids; i++)
        r->marks.marks[r->ids[i] / 64] |= (uint64_t)1 << r->ids[i] % 64;
    packed_index(&r->marks);
    write_gradients(r->values, ps_client_values(r->client)[0], packed_floats(&r->marks));
}

static int decide(struct rank *r, uint64_t step, struct err *err)
{
    struct ps_votes votes;
    int rc =
        r->self == 0 ? ps_leader_collect(r->leader, &r->port, &r->route, step, &votes, err) : 0;

    return rc == 0 ? comm_all_reduce(r->comm, 0, r->word, 1, TENSOR_F32, COMM_SUM, err) : rc;
}

CLONES static void scale(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] *= 1e-3f;
}

/* Waits until the rank may begin the step, or all have ended the last one. */
static int next(struct rank *r, uint64_t step, struct ps_next *out, struct err *err)
{
    int rc = ps_client_next(r->client, step, r->self, 1, r->after, out, err);

    if (rc == 0 && out->n_facts > 0)
        r->after = out->facts[out->n_facts - 1].step;
    return rc;
}

static int begin_step(struct rank *r, uint64_t step, struct ps_unit *unit, struct err *err)
{
    struct ps_next n;
    int rc;

    if (r->plan->bound == 0) {
        ps_client_begin(r->client, 0);
        return 0;
    }
    rc = next(r, step, &n, err);
    if (rc == 0 && n.what != PS_NEXT_UNIT)
        rc = err_set(err, ERR_PEER, "no unit of step %" PRIu64, step);
    *unit = n.unit;
    ps_client_begin_unit(r->client, step);
    return rc;
}

static int push(struct rank *r, uint64_t step, const struct ps_unit *unit, struct err *err)
{
    const float *const *dense = (const float *const *)r->dense;

    return r->plan->bound == 0
               ? ps_client_push(r->client, step, &r->marks, r->values, dense, 0, err)
               : ps_client_push_unit(r->client, unit, &r->marks, r->values, dense, 0, err);
}

static int apply_unit(struct rank *r, const struct optim_hyper *hyper, uint64_t *decided,
                      struct err *err)
{
    const struct ps_unit_facts facts = { 0 };
    struct ps_votes votes;
    uint64_t version;
    int rc = ps_client_order(r->client, &version, err);

    if (rc == 0)
        rc = ps_leader_collect(r->leader, &r->port, &r->route, version, &votes, err);
    *decided = clock_ns();
    return rc == 0 ? ps_client_commit_unit(r->client, version, hyper, &facts, err) : rc;
}

static int apply(struct rank *r, uint64_t step, uint64_t *decided, struct err *err)
{
    struct optim_hyper hyper = { .learning_rate = 1e-3, .grad_scale = 1, .step = step };
    int rc;

    if (r->plan->bound > 0)
        return apply_unit(r, &hyper, decided, err);
    rc = decide(r, step, err);
    *decided = clock_ns();
    return rc == 0 ? ps_client_commit(r->client, step, &hyper, err) : rc;
}

/* The gradients of dense parameters take the place of their values. */
static int run_step(struct rank *r, uint64_t step, uint64_t at[PARTS + 1], struct err *err)
{
    bool is_dense = r->plan->dense > 0;
    struct ps_unit unit;
    int rc;

    at[DRAW] = clock_ns();
    if (!is_dense)
        draw(r);
    at[RESOLVE] = clock_ns();
    rc = begin_step(r, step, &unit, err);
    if (rc < 0)
        return rc;
    if (!is_dense)
        ps_client_resolve(r->client, 0, r->ids, r->plan->ids);
    at[FETCH] = clock_ns();
    rc = is_dense ? ps_client_fetch_dense(r->client, r->dense, err)
                  : ps_client_fetch(r->client, err);
    at[MARK] = clock_ns();
    for (uint32_t i = 0; is_dense && i < DENSE; i++)
        scale(r->dense[i], r->plan->dense);
    if (!is_dense)
        mark(r);
    at[PUSH] = clock_ns();
    if (rc == 0)
        rc = push(r, step, &unit, err);
    at[DECIDE] = clock_ns();
    if (rc == 0)
        rc = apply(r, step, &at[COMMIT], err);
    at[PARTS] = clock_ns();
    return rc;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void report(struct rank *r, double seconds)
{
    const struct plan *p = r->plan;

    printf("%12s %12.0f\n%12s %12.2f\n", "rows/s",
           (double)p->ids * p->n_ranks * p->n_steps / seconds, "step us",
           seconds / p->n_steps * 1e6);
    for (int k = 0; k < PARTS; k++) {
        qsort(r->us[k], p->n_steps, sizeof(*r->us[k]), by_value);
        printf("%12s %12u\n", names[k], r->us[k][p->n_steps / 2]);
    }
}

static int measure(struct rank *r, struct err *err)
{
    uint32_t n = r->plan->n_steps;
    uint64_t start = 0, at[PARTS + 1];
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n + WARM; i++) {
        if (i == WARM)
            start = clock_ns();
        rc = run_step(r, i + 1, at, err);
        for (int k = 0; k < PARTS && i >= WARM; k++)
            r->us[k][i - WARM] = (uint32_t)((at[k + 1] - at[k]) / 1000);
    }
    for (struct ps_next last = { .what = PS_NEXT_NONE };
         rc == 0 && r->plan->bound > 0 && last.what != PS_NEXT_STOP;)
        rc = next(r, n + WARM + 1, &last, err);
    if (rc == 0 && r->self == 0)
        report(r, (double)(clock_ns() - start) / 1e9);
    return rc == 0 ? ps_client_end(r->client, true, err) : rc;
}

static int train(const struct plan *p, uint32_t self, struct comm_listener *l, struct err *err)
{
    struct rank r = { .plan = p, .self = self, .random = 88172645463325252ull + self };
    struct packed_table table = { .rows = p->ids, .width = p->width };
    size_t words = packed_layout(&table, 1);
    struct device_mem arena;
    int rc = device_mem_open(&arena, 4096, true, err);

    r.ids = malloc(p->ids * sizeof(*r.ids));
    r.values = malloc(p->ids * p->width * sizeof(*r.values));
    for (uint32_t i = 0; i < DENSE; i++)
        r.dense[i] = malloc((p->dense + 1) * sizeof(*r.dense[i]));
    for (int k = 0; k < PARTS; k++)
        r.us[k] = calloc(p->n_steps, sizeof(*r.us[k]));
    r.marks = packed_init(&table, 1, words, malloc(packed_bytes(1, words)));
    if (rc == 0)
        rc = connect_group(&r, l, &arena, err);
    r.word = arena.base;
    if (rc == 0)
        rc = begin(&r, err);
    if (rc == 0)
        rc = measure(&r, err);
    if (rc == 0)
        comm_close(r.comm); /* in order, so that no other process sees a loss */
    return rc;
}

int main(int argc, char **argv)
{
    struct plan p = { .n_ranks = 2, .n_threads = 1, .n_steps = 300, .width = 64, .rows = 1000000, .ids = 16384 };
    struct comm_listener *listeners[RANKS_MAX + 1];
    struct err err;
    int status, failed = 0;

    if (!parse(argc, argv, &p))
        return usage();
    for (uint32_t i = 0; i <= p.n_ranks; i++) {
        if (comm_listener_open("127.0.0.1", 0, 0, NULL, &listeners[i], &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        snprintf(p.address[i], sizeof(p.address[i]), "%s", comm_listener_address(listeners[i]));
    }
    for (uint32_t i = 0; i <= p.n_ranks; i++)
        if (fork() == 0) {
            int rc =
                i < p.n_ranks ? train(&p, i, listeners[i], &err) : serve(&p, listeners[i], &err);

            if (rc < 0)
                fprintf(stderr, "point %u: %s\n", i, err.text);
            fflush(stdout);
            _exit(rc < 0);
        }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
