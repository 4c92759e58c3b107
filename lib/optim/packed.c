/* packed.c - pieces of tables with a packed gradient, which consists of runs of marked rows. */
#include <string.h>

#include "optim/optim_priv.h"
#include "tensor/packed.h"

enum {
    ROOM = 1024,    /* floats that are gathered for one sweep */
    LONG_RUN = 256, /* floats of a run that gets its own sweep */
    AHEAD = 16,     /* rows that are prefetched */
    LINE_FLOATS = 16,
};

/* The index in the arena of the first float of a piece's table. */
static size_t origin(const struct optim_piece *p)
{
    return p->param->first - p->param->skipped;
}

/* The runs in floats [at, at + n) of the arena. */
static struct packed_run runs_of(const struct optim_state *s, const struct optim_piece *p,
                                 size_t at, size_t n)
{
    size_t begin = at - origin(p);

    return packed_runs(s->packed, (uint32_t)(p->param->table - s->packed->tables), begin,
                       begin + n);
}

void optim_packed_clip(const struct optim_state *s, const struct optim_piece *p, float limit)
{
    struct packed_run run = runs_of(s, p, p->first, p->n);

    while (packed_next(&run))
        optim_clamp(s->values + run.values, run.n, limit);
}

void optim_packed_each(const struct optim_state *s, const struct optim_piece *p,
                       optim_each_fn *each, void *arg)
{
    struct packed_run run = runs_of(s, p, p->first, p->n);

    while (packed_next(&run))
        each(arg, origin(p) + run.at, s->values + run.values, run.n);
}

void optim_packed_squares(const struct optim_state *s, const struct optim_piece *p, double *partial)
{
    for (size_t at = p->first; at < p->first + p->n; at += OPTIM_BLOCK) {
        size_t left = p->first + p->n - at, n = left < OPTIM_BLOCK ? left : OPTIM_BLOCK;
        struct packed_run run = runs_of(s, p, at, n);
        double sums[OPTIM_SUMS] = { 0 };

        while (packed_next(&run))
            optim_square_add(sums, origin(p) + run.at - at, s->values + run.values, run.n);
        *partial++ = optim_square_total(sums);
    }
}

void optim_packed_unfold(const struct optim_state *s, const struct optim_piece *p, size_t at,
                         size_t n, float *g)
{
    struct packed_run run = runs_of(s, p, at, n);

    memset(g, 0, n * sizeof(*g));
    while (packed_next(&run))
        memcpy(g + (origin(p) + run.at - at), s->values + run.values, run.n * sizeof(*g));
}

/* ---- the update ---- */

/* Short runs: their weights and slots are gathered, so that one sweep updates many of them. Their
 * gradients are contiguous already. */
struct together {
    size_t n, n_runs;
    const float *g;
    size_t at[ROOM], length[ROOM]; /* of each run, in floats of the arena */
};

/* Not inlined: a compiler that knows the limits of the length copies with `rep movs`, whose
 * start-up takes several times as long as copying a row. */
static __attribute__((noinline)) void copy(float *restrict to, const float *restrict from, size_t n)
{
    memcpy(to, from, n * sizeof(*to));
}

static void bring(const struct together *t, const float *from, float *to)
{
    for (size_t i = 0; i < t->n_runs; to += t->length[i++])
        copy(to, from + t->at[i], t->length[i]);
}

static void put_back(const struct together *t, const float *from, float *to)
{
    for (size_t i = 0; i < t->n_runs; from += t->length[i++])
        copy(to + t->at[i], from, t->length[i]);
}

static void sweep_together(const struct optim_def *def, const struct optim_hyper *own,
                           const struct optim_state *s, struct together *t)
{
    float w[ROOM], memory[OPTIM_MAX_SLOTS][ROOM], *slots[OPTIM_MAX_SLOTS] = { NULL };

    if (t->n_runs == 0)
        return;
    bring(t, s->w, w);
    for (uint32_t k = 0; k < def->n_slots; k++)
        if (s->slots[k] != NULL)
            bring(t, s->slots[k], slots[k] = memory[k]);
    def->sweep(own, t->n, w, t->g, slots);
    put_back(t, w, s->w);
    for (uint32_t k = 0; k < def->n_slots; k++)
        if (s->slots[k] != NULL)
            put_back(t, memory[k], s->slots[k]);
    t->n = t->n_runs = 0;
}

static void expect_floats(const float *x, size_t n)
{
    for (size_t i = 0; i < n && i < LONG_RUN; i += LINE_FLOATS)
        __builtin_prefetch(x + i, 1);
}

/* Rows are scattered in memory: prefetches them before they are gathered. */
static void expect(const struct optim_def *def, const struct optim_state *s, size_t at, size_t n)
{
    expect_floats(s->w + at, n);
    for (uint32_t k = 0; k < def->n_slots; k++)
        if (s->slots[k] != NULL)
            expect_floats(s->slots[k] + at, n);
}

/* Adds a run to those of the next sweep, or updates it with a sweep of its own. The gradients of
 * successive runs are contiguous. */
static void add_run(const struct optim_def *def, const struct optim_hyper *own,
                    const struct optim_state *s, struct together *t, size_t at, size_t n,
                    const float *g)
{
    if (n >= LONG_RUN || t->n + n > ROOM)
        sweep_together(def, own, s, t);
    if (n >= LONG_RUN) {
        optim_update_range(def, own, s, at, n, g);
        return;
    }
    if (t->n_runs == 0)
        t->g = g;
    t->at[t->n_runs] = at;
    t->length[t->n_runs++] = n;
    t->n += n;
}

void optim_packed_sweep(const struct optim_def *def, const struct optim_hyper *own,
                        const struct optim_state *s, const struct optim_piece *p)
{
    struct packed_run run = runs_of(s, p, p->first, p->n);
    struct together t;

    t.n = t.n_runs = 0;
    while (packed_next(&run)) {
        expect(def, s, origin(p) + run.at, run.n);
        add_run(def, own, s, &t, origin(p) + run.at, run.n, s->values + run.values);
    }
    sweep_together(def, own, s, &t);
}

void optim_update_rows(const struct optim_def *def, const struct optim_hyper *own,
                       const struct optim_state *s, const size_t *at, size_t n, size_t width,
                       const float *g)
{
    struct together t;

    t.n = t.n_runs = 0;
    for (size_t i = 0; i < n && i < AHEAD; i++)
        expect(def, s, at[i], width);
    for (size_t i = 0, run = 1; i < n; i += run, run = 1) {
        while (i + run < n && at[i + run] == at[i] + run * width) /* adjacent rows */
            run++;
        for (size_t k = i + AHEAD; k < i + AHEAD + run && k < n; k++)
            expect(def, s, at[k], width);
        add_run(def, own, s, &t, at[i], run * width, g + i * width);
    }
    sweep_together(def, own, s, &t);
}
