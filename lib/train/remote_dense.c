/* remote_dense.c - dense parameters on parameter servers; see remote.h and remote_priv.h. */
#include <string.h>

#include "base/err.h"
#include "ps/client.h"
#include "ps/wants.h"
#include "train/remote_priv.h"

uint32_t remote_count_dense(const struct train *t)
{
    uint32_t n, found = 0;
    const struct graph_param *p = graph_params(t->model.graph, &n);

    for (uint32_t i = 0; ps_wants_dense(t->opts->ps) && i < n; i++)
        found += p[i].kind == GRAPH_TRAINED;
    return found;
}

void remote_locate_dense(const struct remote *m, float *arena, float **out)
{
    for (uint32_t i = m->n; i < m->n_tables; i++)
        out[i - m->n] = arena + m->dense[i - m->n]->offset;
}

void remote_initial_dense(const struct remote *m, uint32_t table, uint64_t first, uint64_t n,
                          float *out)
{
    const struct graph_param *p = m->dense[table - m->n];
    size_t at = first * PS_DENSE_WIDTH, floats = n * PS_DENSE_WIDTH;
    size_t some = p->elements - at < floats ? p->elements - at : floats;

    memcpy(out, m->train->engine->memory.state + p->offset + at, some * sizeof(*out));
    memset(out + some, 0, (floats - some) * sizeof(*out));
}

static bool has_dense(const struct remote *m)
{
    return m != NULL && m->n < m->n_tables;
}

int remote_fetch_dense(struct train *t, enum engine_rows use, struct err *err)
{
    struct remote *m = t->remote;
    const struct memory *mem = &t->engine->memory;
    int rc;

    if (!has_dense(m))
        return 0;
    remote_begin(m, 0, use);
    remote_locate_dense(m, use == ENGINE_ROWS_AVERAGE ? mem->average : mem->state, m->places[0]);
    rc = ps_client_fetch_dense(m->clients[0], m->places[0], err);
    return rc < 0 ? err_wrap(err, rc, "dense parameters of the parameter servers") : 0;
}

/* The replicas of a task share the state, so the first one reads it. */
int remote_read_dense(struct replica *r, enum engine_rows use, struct err *err)
{
    struct train *t = r->train;
    int rc = 0;

    if (!has_dense(t->remote))
        return 0;
    place_enter(&r->device->place, PHASE_TRANSFER);
    if (r->local == 0)
        rc = remote_fetch_dense(t, use, err);
    if (rc == 0 && t->opts->n_devices > 1)
        rc = generation_gate(&t->generation, &r->device->place, err);
    return rc;
}

/* Reads a part of a dense parameter to out [elements]. */
static int gather_part(struct train *t, uint32_t i, uint32_t part, float *out, struct err *err)
{
    enum { ROWS = (4 << 20) / (PS_DENSE_WIDTH * sizeof(float)) };
    uint64_t n = t->remote->dense[i - t->remote->n]->elements, whole = n / PS_DENSE_WIDTH, some;
    float last[PS_DENSE_WIDTH]; /* its end is after that of the parameter */
    int rc = 0;

    for (uint64_t row = 0; rc == 0 && row < whole; row += some) {
        some = whole - row < ROWS ? whole - row : ROWS;
        rc = remote_read_rows(t, i, part, row, some, out + row * PS_DENSE_WIDTH, err);
    }
    if (rc == 0 && n % PS_DENSE_WIDTH != 0) {
        rc = remote_read_rows(t, i, part, whole, 1, last, err);
        if (rc == 0)
            memcpy(out + whole * PS_DENSE_WIDTH, last, n % PS_DENSE_WIDTH * sizeof(*last));
    }
    return rc;
}

int remote_gather(struct train *t, float *to, struct err *err)
{
    const struct remote *m = t->remote;
    const struct parts *parts = &t->model.parts;
    int rc = 0;

    for (uint32_t i = m != NULL ? m->n : 0; m != NULL && i < m->n_tables; i++)
        for (uint32_t k = 0; rc == 0 && k < parts->n; k++)
            rc = gather_part(t, i, k, to + parts->at[k] + m->dense[i - m->n]->offset, err);
    /* a connection fails: the generation ends, which is no failure of the storage */
    return rc < 0 ? err_wrap(err, ERR_CANCELED, "dense parameters of the parameter servers") : 0;
}
