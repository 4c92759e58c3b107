/* cpu_check.c - see cpu_check.h. */
#include "engine/cpu_check.h"

#include <inttypes.h>
#include <math.h>

#include "base/checksum.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "graph/graph.h"

struct sum {
    uint32_t checksum;
    bool finite;
};

static void look_at_stretch(void *arg, size_t at, const float *g, size_t n)
{
    struct sum *s = arg;

    (void)at;
    s->finite = checksum_finite(g, n) && s->finite;
}

static void add_stretch(void *arg, size_t at, const float *g, size_t n)
{
    struct sum *s = arg;

    s->checksum = checksum_add(s->checksum, checksum_part(g, n, at, &s->finite));
}

/* A part as this replica's arena has it. Statistics go with part 0: replica 0 moves them all. */
static struct sum pass_over(const struct engine_replica *r, uint32_t part, optim_each_fn *each)
{
    const struct engine *e = r->engine;
    float *grads = r->arenas->grads[0];
    const struct optim_state state = { .g = grads,
                                       .packed =
                                           e->memory.opts.n_tables > 0 ? &r->arenas->rows[0] : NULL,
                                       .values = grads + e->memory.dense };
    struct sum s = { .finite = true };
    uint32_t n;
    const struct graph_param *params = graph_params(e->opts->graph, &n);

    optim_each(e->opts->optim, part, &state, each, &s);
    for (uint32_t i = 0; part == 0 && i < n; i++)
        if (params[i].kind == GRAPH_STATISTIC)
            each(&s, params[i].offset, grads + params[i].offset, params[i].elements);
    return s;
}

static void flip(float *x)
{
    *(uint8_t *)x ^= 1; /* the last bit of a fraction, which only a checksum detects */
}

static void inject_faults(struct engine_replica *r)
{
    const struct memory *m = &r->engine->memory;
    float *grads = r->arenas->grads[0];

    if (fault_hit("health.flip_gradient"))
        flip(grads);
    if (m->opts.n_tables > 0 && fault_hit("health.flip_row"))
        flip(grads + m->dense);
    if (fault_hit("health.not_finite"))
        grads[0] = NAN;
}

/* Without peers the engine compares the parts; with peers the tasks are compared. */
static bool compares_parts(const struct engine *e)
{
    return !e->group.compares && e->opts->n_devices > 1 && e->opts->check_gradients;
}

void cpu_inspect(struct engine_replica *r)
{
    const struct engine *e = r->engine;
    uint32_t n = e->opts->n_devices, before = (r->local + n - 1) % n;
    bool sums = e->opts->check_gradients && (e->group.compares || n > 1);
    struct sum own;

    if (r->local == 0)
        inject_faults(r);
    own = pass_over(r, r->local, sums ? add_stretch : look_at_stretch);
    r->inspection.own = own.checksum;
    r->inspection.bad = !own.finite;
    if (compares_parts(e))
        r->inspection.other = pass_over(r, before, add_stretch).checksum;
}

/* Part i of the gradient in the arena of the replica that will use it, and in that of the next one.
 */
static int parts_differ(const struct engine *e, uint32_t i, uint32_t next, uint64_t step,
                        struct err *err)
{
    return err_set(
        err, ERR_DEVICE,
        "%s: its replicas %u and %u hold different reduced gradients, with checksums "
        "%06x and %06x in part %u: a processor or memory of this machine computed or stored "
        "a wrong value. Step %" PRIu64 " is not applied; the state before it is valid",
        e->group.view->members[e->group.view->self].name, i, next, e->replicas[i]->inspection.own,
        e->replicas[next]->inspection.other, i, step);
}

int cpu_verify_gradient(struct engine_replica *r, uint64_t step, uint32_t *sum, bool *finite,
                        struct err *err)
{
    const struct engine *e = r->engine;
    uint32_t n = e->opts->n_devices;

    *sum = 0;
    *finite = true;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_inspection *own = &e->replicas[i]->inspection;
        uint32_t next = (i + 1) % n;

        *finite = *finite && !own->bad;
        *sum = checksum_add(*sum, own->own);
        if (compares_parts(e) && own->own != e->replicas[next]->inspection.other)
            return parts_differ(e, i, next, step, err);
    }
    return 0;
}

int cpu_checksum(struct engine_replica *r, struct err *err)
{
    const struct memory *m = &r->engine->memory;
    /* remote parameters in the state are of any step */
    size_t first = r->engine->opts->remote_dense ? m->trained : 0;
    size_t last = r->engine->opts->remote_dense ? m->params : m->state_bytes / sizeof(float);
    size_t n = last - first, parts = r->engine->opts->n_devices;
    size_t begin = first + n * r->local / parts / 16 * 16;
    size_t end = first + n * (r->local + 1) / parts / 16 * 16;
    bool finite = true; /* whether the state is finite follows from the gradients */

    (void)err;
    if (r->local + 1 == parts)
        end = last;
    r->state_sum = checksum_part(m->state + begin, end - begin, begin, &finite);
    return 0;
}

int cpu_verify_state(struct engine_replica *r, uint64_t step, uint32_t *sum, struct err *err)
{
    const struct engine *e = r->engine;

    (void)step;
    (void)err;
    *sum = 0;
    for (uint32_t i = 0; i < e->opts->n_devices; i++)
        *sum = checksum_add(*sum, e->replicas[i]->state_sum);
    return 0; /* the state is shared: there is no other copy */
}
