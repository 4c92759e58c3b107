/* remote_rows.c - rows of remote parameters that the task reads; see remote.h and remote_priv.h. */
#include <stdlib.h>

#include "base/err.h"
#include "ps/client.h"
#include "ps/leader.h"
#include "ps/port.h"
#include "train/remote_priv.h"

void remote_begin(struct remote *m, uint32_t local, enum engine_rows use)
{
    if (use == ENGINE_ROWS_OF_LANES && m->unit.n > 0)
        ps_client_begin_unit(m->clients[local], m->unit.step);
    else if (use == ENGINE_ROWS_OF_LANES)
        ps_client_begin_step(m->clients[local]);
    else
        ps_client_begin(m->clients[local],
                        use == ENGINE_ROWS_AVERAGE ? m->train->model.parts.average : 0);
}

int remote_read_rows(struct train *t, uint32_t table, uint32_t part, uint64_t first, uint64_t n,
                     float *out, struct err *err)
{
    struct remote *m = t->remote;
    struct ps_port port = ps_comm_port(t->generation.comm, 0);
    const uint64_t *rows = table < m->n ? m->listed[table].rows : NULL;

    return ps_leader_read(m->leader, &port, &m->route, remote_version(m), table, part,
                          rows != NULL ? rows + first : NULL, first, n, out, err);
}

/* ---- for an export ---- */

void remote_free_listed(struct remote *m)
{
    for (uint32_t i = 0; m->listed != NULL && i < m->n; i++) {
        free(m->listed[i].rows);
        free(m->listed[i].ids);
        m->listed[i] = (struct listed){ 0 };
    }
}

/* graph_row_reader.read */
static int read_present(void *arg, uint32_t table, uint64_t first, uint64_t n, float *out,
                        struct err *err)
{
    return remote_read_rows(arg, table, 0, first, n, out, err);
}

static int read_average(void *arg, uint32_t table, uint64_t first, uint64_t n, float *out,
                        struct err *err)
{
    struct train *t = arg;

    return remote_read_rows(t, table, t->model.parts.average, first, n, out, err);
}

/* graph_row_reader.list */
static int list_ids(void *arg, uint32_t table, const int64_t **ids, uint64_t *n, struct err *err)
{
    struct train *t = arg;
    struct remote *m = t->remote;
    struct ps_port port = ps_comm_port(t->generation.comm, 0);
    struct listed *l = &m->listed[table];
    const uint32_t *servers;
    int rc = ps_leader_find_readers(m->leader, &port, &m->route, &servers, err);

    if (rc == 0)
        rc =
            ps_leader_list(m->leader, &port, &m->route, remote_version(m), table, &l->rows, n, err);
    if (rc < 0)
        return rc;
    l->ids = calloc(*n + 1, sizeof(*l->ids));
    if (l->ids == NULL)
        return err_set(err, ERR_NOMEM, "remote parameters: out of memory");
    for (uint64_t i = 0; i < *n; i++)
        l->ids[i] = ps_id_of_row(l->rows[i]);
    *ids = l->ids;
    return 0;
}

void remote_reader(struct train *t, bool averages, struct graph_row_reader *out)
{
    remote_free_listed(t->remote);
    *out = (struct graph_row_reader){ averages ? read_average : read_present, t, list_ids };
}
