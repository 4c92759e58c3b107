/* optim.c - the table of optimizers, and an optimizer over a list of parameters: parameters are
 * divided into blocks, blocks are distributed over the parts, and partial sums are kept for each
 * block. */
#include "optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "optim/optim_priv.h"
#include "tensor/packed.h"
#include "tensor/shards.h"

const struct optim_def *optim_get(enum optim_type type)
{
#define ROW(NAME, word, ...) [OPTIM_##NAME] = &optim_##word,
    static const struct optim_def *const defs[] = { OPTIM_LIST(ROW) };
#undef ROW

    CHECK((size_t)type < COUNT_OF(defs));
    return defs[type];
}

bool optim_uses(const struct optim_def *def, const struct optim_hyper *h, uint32_t slot)
{
    CHECK(slot < def->n_slots);
    switch (def->slots[slot].use) {
    case OPTIM_ALWAYS:
        return true;
    case OPTIM_WITH_MOMENTUM:
        return h->momentum > 0;
    case OPTIM_CENTERED:
        return h->centered;
    }
    CHECK(!"a use that is in the enum");
    return false;
}

/* ---- an optimizer over a list of parameters ---- */

struct optim {
    struct optim_opts opts;
    struct optim_param *params; /* owned */
    /* [n_params + 1] owned: number of blocks of the preceding parameters */
    size_t *first_block;
    double *squares;            /* [blocks] owned: sums of squares of the gradient */
    /* [n_params + 1] owned: number of blocks of 64 rows of the preceding sharded parameters */
    size_t *first_sharded;
    double *sharded;            /* [those blocks] owned: their sums of squares */
    /* [blocks] owned: results of measure(); NULL: the row has no measure() */
    double (*sums)[2];
};

int optim_new(const struct optim_opts *opts, struct optim **out, struct err *err)
{
    struct optim *o = calloc(1, sizeof(*o));
    size_t blocks = 0, sharded = 0, n = opts->n_params;

    CHECK(opts->n_parts > 0);
    if (o == NULL)
        return err_set(err, ERR_NOMEM, "optimizer: out of memory");
    o->opts = *opts;
    o->params = calloc(n + 1, sizeof(*o->params));
    o->first_block = calloc(n + 1, sizeof(*o->first_block));
    o->first_sharded = calloc(n + 1, sizeof(*o->first_sharded));
    if (o->params == NULL || o->first_block == NULL || o->first_sharded == NULL)
        goto no_memory;
    o->opts.params = o->params;
    for (size_t i = 0; i < n; i++) {
        CHECK(opts->params[i].n > 0);
        CHECK(!opts->params[i].lazy ||
              (opts->params[i].table != NULL && opts->def->measure == NULL));
        CHECK(i == 0 || opts->params[i].first >= o->params[i - 1].first + o->params[i - 1].n);
        CHECK(!opts->params[i].is_sharded ||
              (opts->params[i].first_shard < SHARDS && opts->params[i].width > 0 &&
               opts->params[i].skipped == 0));
        o->params[i] = opts->params[i];
        sharded += opts->params[i].is_sharded ? optim_sharded_blocks(&opts->params[i]) : 0;
        o->first_sharded[i + 1] = sharded;
        blocks += (opts->params[i].n - 1) / OPTIM_BLOCK + 1;
        o->first_block[i + 1] = blocks;
    }
    o->squares = calloc(blocks + 1, sizeof(*o->squares));
    o->sharded = calloc(sharded + 1, sizeof(*o->sharded));
    if (o->squares == NULL || o->sharded == NULL)
        goto no_memory;
    if (opts->def->measure != NULL) {
        o->sums = calloc(blocks + 1, sizeof(*o->sums));
        if (o->sums == NULL)
            goto no_memory;
    }
    *out = o;
    return 0;

no_memory:
    optim_free(o);
    return err_set(err, ERR_NOMEM, "optimizer: out of memory");
}

void optim_free(struct optim *o)
{
    if (o == NULL)
        return;
    free(o->params);
    free(o->first_block);
    free(o->squares);
    free(o->first_sharded);
    free(o->sharded);
    free(o->sums);
    free(o);
}

const struct optim_opts *optim_options(const struct optim *o)
{
    return &o->opts;
}

/* The first of n blocks that belongs to a part, in 128 bits, because blocks times parts may exceed 64
 * bits. */
static size_t share_begin(const struct optim *o, size_t n, uint32_t part)
{
    return (size_t)((unsigned __int128)n * part / o->opts.n_parts);
}

static size_t part_begin(const struct optim *o, uint32_t part)
{
    return share_begin(o, o->first_block[o->opts.n_params], part);
}

/* Returns the next piece of a part; a piece belongs to one parameter. *block is the first block of
 * the piece, and becomes that of the next one. */
static bool next_piece(const struct optim *o, uint32_t part, size_t *block, struct optim_piece *p)
{
    size_t end = part_begin(o, part + 1), low = 0, high = o->opts.n_params, last;

    if (*block >= end)
        return false;
    while (high - low > 1) { /* first_block[low] <= *block < first_block[high] */
        size_t middle = low + (high - low) / 2;

        if (o->first_block[middle] <= *block)
            low = middle;
        else
            high = middle;
    }
    last = o->first_block[low + 1] < end ? o->first_block[low + 1] : end;
    p->param = &o->params[low];
    p->block = *block;
    p->first = (*block - o->first_block[low]) * OPTIM_BLOCK;
    p->n = (last - *block) * OPTIM_BLOCK;
    if (p->n > p->param->n - p->first)
        p->n = p->param->n - p->first;
    p->first += p->param->first;
    *block = last;
    return true;
}

static bool is_packed(const struct optim_state *state, const struct optim_param *p)
{
    return state->packed != NULL && p->table != NULL;
}

void optim_clip_values(const struct optim *o, uint32_t part, const struct optim_state *state,
                       float limit)
{
    size_t block = part_begin(o, part);
    struct optim_piece p;

    while (next_piece(o, part, &block, &p))
        if (is_packed(state, p.param))
            optim_packed_clip(state, &p, limit);
        else
            optim_clamp(state->g + p.first, p.n, limit);
}

void optim_measure_gradient(struct optim *o, uint32_t part, const struct optim_state *state)
{
    size_t block = part_begin(o, part);
    struct optim_piece p;

    while (next_piece(o, part, &block, &p))
        if (!p.param->is_sharded && is_packed(state, p.param))
            optim_packed_squares(state, &p, o->squares + p.block);
        else if (!p.param->is_sharded)
            optim_square_sums(state->g + p.first, p.n, o->squares + p.block);
    for (uint32_t i = 0; i < o->opts.n_params; i++) {
        size_t first = o->first_sharded[i], n = o->first_sharded[i + 1] - first;

        if (o->params[i].is_sharded)
            optim_sharded_squares(state, &o->params[i], share_begin(o, n, part),
                                  share_begin(o, n, part + 1), o->sharded + first);
    }
}

void optim_each(const struct optim *o, uint32_t part, const struct optim_state *state,
                optim_each_fn *each, void *arg)
{
    size_t block = part_begin(o, part);
    struct optim_piece p;

    while (next_piece(o, part, &block, &p))
        if (is_packed(state, p.param))
            optim_packed_each(state, &p, each, arg);
        else
            each(arg, p.first, state->g + p.first, p.n);
}

double optim_gradient_norm(const struct optim *o, double more)
{
    double sum = 0;

    for (uint32_t i = 0; i < o->opts.n_params; i++)
        for (size_t b = o->first_block[i]; !o->params[i].is_sharded && b < o->first_block[i + 1];
             b++)
            sum += o->squares[b];
    return sqrt(
        sum +
        (optim_sharded_total(o->params, o->first_sharded, o->opts.n_params, o->sharded) + more));
}

bool optim_needs_norms(const struct optim *o)
{
    return o->opts.def->measure != NULL;
}

static struct optim_hyper own_hyper(const struct optim_param *p, const struct optim_hyper *h)
{
    return optim_own_hyper(h, p->rate_factor, p->weight_decay);
}

static void slots_at(const struct optim *o, const struct optim_state *state, size_t at,
                     float *out[OPTIM_MAX_SLOTS])
{
    for (uint32_t s = 0; s < OPTIM_MAX_SLOTS; s++)
        out[s] = s < o->opts.def->n_slots && state->slots[s] != NULL ? state->slots[s] + at : NULL;
}

/* Returns the gradient of floats [at, at + n) of a piece, n <= OPTIM_BLOCK: in place, or unpacked
 * to `unfolded`. */
static const float *gradient_at(const struct optim_state *state, const struct optim_piece *p,
                                size_t at, size_t n, float unfolded[OPTIM_BLOCK])
{
    if (!is_packed(state, p->param))
        return state->g + at;
    optim_packed_unfold(state, p, at, n, unfolded);
    return unfolded;
}

void optim_measure(struct optim *o, uint32_t part, const struct optim_hyper *h,
                   const struct optim_state *state)
{
    size_t block = part_begin(o, part);
    struct optim_piece p;

    while (next_piece(o, part, &block, &p)) {
        struct optim_hyper own = own_hyper(p.param, h);

        for (size_t done = 0; done < p.n; done += OPTIM_BLOCK) {
            size_t at = p.first + done, n = p.n - done < OPTIM_BLOCK ? p.n - done : OPTIM_BLOCK;
            float *slots[OPTIM_MAX_SLOTS], unfolded[OPTIM_BLOCK];
            const float *g = gradient_at(state, &p, at, n, unfolded);

            slots_at(o, state, at, slots);
            o->opts.def->measure(&own, n, state->w + at, g, slots,
                                 o->sums[p.block + done / OPTIM_BLOCK]);
        }
    }
}

/* Adds the blocks of all stretches of the parameter in order; any replica may have measured
 * them. */
static double trust_of(const struct optim *o, const struct optim_param *p,
                       const struct optim_hyper *own)
{
    size_t i = (size_t)(p - o->params), end = i + 1;
    double norms[2] = { 0, 0 };

    if (o->sums == NULL || !p->adapts)
        return 1;
    while (i > 0 && optim_is_same(&o->params[i - 1], p))
        i--;
    while (end < o->opts.n_params && optim_is_same(&o->params[end], p))
        end++;
    for (size_t b = o->first_block[i]; b < o->first_block[end]; b++)
        for (uint32_t k = 0; k < 2; k++)
            norms[k] += o->sums[b][k];
    for (uint32_t k = 0; k < 2; k++)
        norms[k] = sqrt(norms[k]);
    if (norms[0] == 0 || norms[1] == 0)
        return 1;
    return o->opts.def->trust(own, norms);
}

/* Updates every float of a piece; a packed gradient is unpacked block by block. */
static void sweep_whole(const struct optim *o, const struct optim_hyper *own,
                        const struct optim_state *state, const struct optim_piece *p)
{
    size_t step = is_packed(state, p->param) ? OPTIM_BLOCK : p->n;

    for (size_t done = 0; done < p->n; done += step) {
        size_t at = p->first + done, n = p->n - done < step ? p->n - done : step;
        float unfolded[OPTIM_BLOCK];

        optim_update_range(o->opts.def, own, state, at, n, gradient_at(state, p, at, n, unfolded));
    }
}

/* Does a step leave rows without a mark unchanged? */
static bool skips_zero(const struct optim *o, const struct optim_param *p,
                       const struct optim_hyper *own)
{
    return p->table != NULL && optim_skips_rows(o->opts.def, own, p->lazy);
}

uint32_t optim_skipping_tables(const struct optim *o, const struct optim_hyper *h)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->opts.n_params; i++) {
        struct optim_hyper own = own_hyper(&o->params[i], h);

        n += skips_zero(o, &o->params[i], &own) &&
             (i == 0 || !optim_is_same(&o->params[i - 1], &o->params[i]));
    }
    return n;
}

void optim_update(const struct optim *o, uint32_t part, const struct optim_hyper *h,
                  const struct optim_state *state)
{
    size_t block = part_begin(o, part);
    struct optim_piece p;

    while (next_piece(o, part, &block, &p)) {
        struct optim_hyper own = own_hyper(p.param, h);

        own.trust = trust_of(o, p.param, &own);
        CHECK(!p.param->lazy || state->packed != NULL);
        if (is_packed(state, p.param) && skips_zero(o, p.param, &own))
            optim_packed_sweep(o->opts.def, &own, state, &p);
        else
            sweep_whole(o, &own, state, &p);
        if (o->opts.average > 0)
            optim_move_average(state, p.first, p.n, o->opts.average);
    }
}
