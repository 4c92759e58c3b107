/* optim_cuda.cu - an optimizer over a list of parameters on a GPU: the parameters and the
 * statistics, divided into chunks. */
#include <stdlib.h>

#include "optim/optim_cuda_priv.cuh"

extern "C" {
#include "tensor/packed.h"
}

struct cuda_optim {
    const struct optim_def *def;
    const struct optim_row *row;
    double average;
    struct optim_table table;
    /* owned; in the memory of the GPU, like all memory that the table points to */
    struct cuda_scan *scratch;
};

/* Fills [n_params + n_statistics] owners, and counts their chunks. Does not call CUDA. */
static uint64_t fill_owners(const struct optim_opts *opts, const struct cuda_statistic *statistics,
                            uint32_t n_statistics, struct optim_owner *owners,
                            struct optim_chunk *chunks)
{
    uint64_t n_chunks = 0;

    for (uint32_t i = 0; i < opts->n_params + n_statistics; i++) {
        const struct optim_param *p = i < opts->n_params ? &opts->params[i] : NULL;
        const struct cuda_statistic *s = p == NULL ? &statistics[i - opts->n_params] : NULL;
        size_t at = p != NULL ? p->first : s->first, end = at + (p != NULL ? p->n : s->n);
        uint64_t first_chunk = n_chunks;
        bool is_table = p != NULL && p->table != NULL;

        for (; at < end; n_chunks++) {
            size_t cut = (at / OPTIM_CHUNK + 1) * OPTIM_CHUNK, to = cut < end ? cut : end;

            if (chunks != NULL)
                chunks[n_chunks] = { at, (uint32_t)(to - at), i };
            at = to;
        }
        if (owners != NULL)
            owners[i] = { .first = p != NULL ? p->first - p->skipped : s->first,
                          .width = is_table ? p->table->width : 0,
                          .first_mark = is_table ? 64 * p->table->first_word : 0,
                          .rate_factor = p != NULL ? p->rate_factor : 0,
                          .weight_decay = p != NULL ? p->weight_decay : 0,
                          .first_chunk = (uint32_t)first_chunk,
                          .n_chunks = (uint32_t)(n_chunks - first_chunk),
                          .keep = s != NULL ? s->keep : 0,
                          .adapts = p != NULL && p->adapts,
                          .lazy = p != NULL && p->lazy };
    }
    return n_chunks;
}

/* Stretches of one parameter share a ratio: each stretch gets the chunks of all of them, which are
 * consecutive. */
static void join_stretches(const struct optim_opts *opts, struct optim_owner *owners)
{
    uint32_t begin = 0, i;

    for (i = 1; i <= opts->n_params; i++) {
        uint32_t chunks = 0, k;

        if (i < opts->n_params && owners[i].first == owners[begin].first)
            continue;
        for (k = begin; k < i; k++)
            chunks += owners[k].n_chunks;
        for (k = begin; k < i; k++) {
            owners[k].first_chunk = owners[begin].first_chunk;
            owners[k].n_chunks = chunks;
        }
        begin = i;
    }
}

static int open_tables(struct cuda_optim *o, const struct optim_opts *opts,
                       const struct cuda_statistic *statistics, uint32_t n_statistics,
                       struct err *err)
{
    struct optim_table *t = &o->table;
    size_t n_owners = (size_t)opts->n_params + n_statistics;
    uint64_t n_chunks = fill_owners(opts, statistics, n_statistics, NULL, NULL);
    struct optim_owner *owners;
    struct optim_chunk *chunks;
    int rc;

    if (n_chunks > INT32_MAX)
        return err_set(err, ERR_INPUT,
                       "the optimizer has %llu chunks of %u numbers to move, a GPU takes %d",
                       (unsigned long long)n_chunks, OPTIM_CHUNK, INT32_MAX);
    owners = (struct optim_owner *)calloc(n_owners + 1, sizeof(*owners));
    chunks = (struct optim_chunk *)calloc(n_chunks + 1, sizeof(*chunks));
    if (owners == NULL || chunks == NULL) {
        rc = err_set(err, ERR_NOMEM, "out of memory");
    } else {
        t->n_chunks = (uint32_t)fill_owners(opts, statistics, n_statistics, owners, chunks);
        join_stretches(opts, owners);
        t->n_params = opts->n_params;
        t->n_param_chunks = t->n_chunks;
        if (n_statistics > 0)
            t->n_param_chunks = owners[opts->n_params].first_chunk;
        rc = cuda_upload(&t->owners, owners, n_owners * sizeof(*owners), err);
        if (rc == 0)
            rc = cuda_upload(&t->chunks, chunks, t->n_chunks * sizeof(*chunks), err);
    }
    free(owners);
    free(chunks);
    return rc;
}

static int open_room(struct cuda_optim *o, struct err *err)
{
    struct optim_table *t = &o->table;
    int rc =
        cuda_alloc((void **)&o->scratch, optim_scan_count(t->n_chunks) * sizeof(*o->scratch), err);

    if (rc == 0 && optim_row_measures(o->row))
        rc = cuda_alloc((void **)&t->sums, t->n_param_chunks * sizeof(*t->sums), err);
    if (rc == 0 && optim_row_measures(o->row))
        rc = cuda_alloc((void **)&t->ratios, t->n_params * sizeof(*t->ratios), err);
    return rc;
}

int cuda_optim_open(const struct optim_opts *opts, const struct cuda_statistic *statistics,
                    uint32_t n_statistics, struct cuda_optim **out, struct err *err)
{
    struct cuda_optim *o = (struct cuda_optim *)calloc(1, sizeof(*o));
    int rc;

    if (o == NULL)
        return err_set(err, ERR_NOMEM, "optimizer: out of memory");
    o->def = opts->def;
    o->row = optim_row_find(opts->def->type);
    o->average = opts->average;
    if (o->row == NULL)
        rc = err_set(err, ERR_DEVICE, "there are no kernels for it");
    else
        rc = open_tables(o, opts, statistics, n_statistics, err);
    if (rc == 0)
        rc = open_room(o, err);
    if (rc < 0) {
        cuda_optim_close(o);
        return err_wrap(err, rc, "optimizer %s on the GPU", opts->def->name);
    }
    *out = o;
    return 0;
}

void cuda_optim_close(struct cuda_optim *o)
{
    if (o == NULL)
        return;
    cuda_free((void *)o->table.chunks);
    cuda_free((void *)o->table.owners);
    cuda_free(o->table.sums);
    cuda_free(o->table.ratios);
    cuda_free(o->scratch);
    free(o);
}

int cuda_optim_scan(struct cuda_optim *o, float *g, float clip, struct cuda_scan *result,
                    struct cuda_stream *s, struct err *err)
{
    const struct optim_table *t = &o->table;

    return optim_scan_at(g, t->chunks, t->n_chunks, t->n_param_chunks, clip, result, o->scratch,
                         cuda_stream_of(s), err);
}

int cuda_optim_update(struct cuda_optim *o, const struct optim_hyper *h,
                      const struct optim_state *state, float share, struct cuda_stream *s,
                      struct err *err)
{
    struct optim_arrays a = { .w = state->w, .g = state->g, .slots = {},
                              .average = o->average > 0 ? state->average : NULL, .read = state->read };
    struct optim_hyper undecayed = *h;

    undecayed.weight_decay = 0;
    a.skips_zero = o->def->skips_zero != NULL && o->def->skips_zero(&undecayed);
    for (uint32_t k = 0; k < OPTIM_MAX_SLOTS; k++)
        a.slots[k] = state->slots[k];
    return optim_row_update(o->row, &o->table, h, &a, o->average, share, cuda_stream_of(s), err);
}
