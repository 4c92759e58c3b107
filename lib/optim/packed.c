/* packed.c - pieces of tables with a packed gradient, which consists of runs of marked rows. */
#include <string.h>

#include "optim/optim_priv.h"
#include "tensor/packed.h"

enum { RUNS = 1024 /* of one sweep */ };

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

struct update {
    const struct optim_def *def;
    const struct optim_hyper *own;
    const struct optim_state *state;
    const float *g; /* of the first run */
    size_t n;
    struct optim_run runs[RUNS];
};

static void update_begin(struct update *u, const struct optim_def *def,
                         const struct optim_hyper *own, const struct optim_state *s)
{
    u->def = def;
    u->own = own;
    u->state = s;
    u->n = 0;
}

static void sweep(struct update *u)
{
    if (u->n > 0)
        u->def->sweep(u->own, u->runs, u->n, u->state->w, u->g, u->state->slots);
    u->n = 0;
}

/* Adds floats [at, at + n) with the gradients g [n], which follow those of the floats before. */
static void add(struct update *u, size_t at, size_t n, const float *g)
{
    struct optim_run *last = u->n > 0 ? &u->runs[u->n - 1] : NULL;

    if (last != NULL && last->at + last->n == at) {
        last->n += n;
        return;
    }
    if (u->n == RUNS)
        sweep(u);
    if (u->n == 0)
        u->g = g;
    u->runs[u->n++] = (struct optim_run){ at, n };
}

void optim_packed_sweep(const struct optim_def *def, const struct optim_hyper *own,
                        const struct optim_state *s, const struct optim_piece *p)
{
    struct packed_run run = runs_of(s, p, p->first, p->n);
    struct update u;

    update_begin(&u, def, own, s);
    while (packed_next(&run))
        add(&u, origin(p) + run.at, run.n, s->values + run.values);
    sweep(&u);
}

void optim_update_rows(const struct optim_def *def, const struct optim_hyper *own,
                       const struct optim_state *s, const size_t *at, size_t n, size_t width,
                       const float *g)
{
    struct update u;

    update_begin(&u, def, own, s);
    for (size_t i = 0; i < n; i++)
        add(&u, at[i], width, g + i * width);
    sweep(&u);
}
