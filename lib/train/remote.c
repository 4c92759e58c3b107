/* remote.c - see remote.h. */
#include "train/remote.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ps/client.h"
#include "ps/files.h"
#include "ps/leader.h"
#include "ps/port.h"
#include "ps/route.h"
#include "ps/wants.h"
#include "tensor/packed.h"
#include "train/groups.h"
#include "train/remote_priv.h"

/* ---- the engine's access ---- */

static int open_clients(void *arg, struct err *err)
{
    struct remote *m = arg;
    uint32_t *widths = calloc(m->n_tables, sizeof(*widths));
    uint32_t *shards = calloc(m->n_tables, sizeof(*shards));
    size_t *rooms = calloc(m->n_tables, sizeof(*rooms));
    size_t *elements = calloc((size_t)m->n_tables - m->n + 1, sizeof(*elements));
    int rc = 0;

    if (widths == NULL || shards == NULL || rooms == NULL || elements == NULL)
        rc = err_set(err, ERR_NOMEM, "remote parameters: out of memory");
    for (uint32_t i = 0; rc == 0 && i < m->n_tables; i++) {
        widths[i] = m->tables[i].width;
        shards[i] = m->tables[i].first_shard;
        if (i < m->n)
            rooms[i] = m->compact[i].rows;
        else
            elements[i - m->n] = m->dense[i - m->n]->elements;
    }
    for (uint32_t i = 0; rc == 0 && i < m->train->opts->n_devices; i++)
        rc = ps_client_open(&(struct ps_client_opts){ .n_tables = m->n_tables,
                                                      .widths = widths,
                                                      .first_shards = shards,
                                                      .rooms = rooms,
                                                      .n_dense = m->n_tables - m->n,
                                                      .elements = elements,
                                                      .staleness = ps_staleness_of(m->train->opts->ps) },
                            &m->clients[i], err);
    free(widths);
    free(shards);
    free(rooms);
    free(elements);
    return rc;
}

static void begin(void *arg, uint32_t local, enum engine_rows use)
{
    remote_begin(arg, local, use);
}

static int lookup(void *arg, uint32_t local, const struct plan_lookup *lookups, uint32_t n,
                  struct err *err)
{
    struct ps_client *c = ((struct remote *)arg)->clients[local];

    for (uint32_t i = 0; i < n; i++)
        ps_client_resolve(c, lookups[i].table, lookups[i].rows, lookups[i].n);
    return ps_client_fetch(c, err);
}

static float *const *values(void *arg, uint32_t local)
{
    return ps_client_values(((struct remote *)arg)->clients[local]);
}

static int push(void *arg, uint32_t local, uint64_t step, const struct packed *rows,
                const float *values, struct err *err)
{
    struct remote *m = arg;
    const struct train *t = m->train;
    /* as cpu_gradient_norm(): the gradients contain the loss scale */
    float clip = (float)(t->opts->run.clip_value * t->replicas[local].device->scale);
    float **dense = m->places[local];

    remote_locate_dense(m, t->replicas[local].device->arenas->grads[0], dense);
    if (m->unit.n > 0)
        return ps_client_push_unit(m->clients[local], &m->unit, rows, values,
                                   (const float *const *)dense, clip, err);
    return ps_client_push(m->clients[local], step + m->ahead, rows, values,
                          (const float *const *)dense, clip, err);
}

/* ---- opening ---- */

static void apply_group(const struct train_opts *o, struct ps_table *table)
{
    const struct train_params *group = groups_find(o, table->name);

    if (group == NULL)
        return;
    table->rate_factor = group->rate_factor;
    table->weight_decay = group->weight_decay;
    table->lazy = group->lazy;
}

/* Sets the rules that the job has for a dynamic table. */
static void apply_rules(const struct train_opts *o, struct ps_table *table)
{
    enum { SWEEP_STEPS = 1000 }; /* results depend on this number */

    for (uint32_t i = 0; i < o->model.n_tables; i++) {
        const struct graph_table *t = &o->model.tables[i];

        if (t->size == TABLE_DYNAMIC && strcmp(t->name, table->name) == 0)
            table->rules = (struct ps_rules){ .admit_after = t->admit_after,
                                              .sweep_steps = SWEEP_STEPS,
                                              .expire_steps = t->expire_steps,
                                              .max_rows = t->max_rows };
    }
}

/* Running statistics are all-reduced in a step, which asynchronous phases do not do. */
static int check_statistics(const struct remote *m, struct err *err)
{
    uint32_t n;
    const struct graph_param *p = graph_params(m->train->model.graph, &n);

    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == GRAPH_STATISTIC)
            return err_set(err, ERR_UNSUPPORTED,
                           "/parameter_server/staleness_kind: '%s' is a running statistic, which all tasks update in each "
                           "step, and with \"bounded\" there are asynchronous steps: freeze it by "
                           "/model/batch_norm \"frozen\", use another normalization, or write \"exact\"",
                           p[i].name);
    return 0;
}

static int check_options(const struct remote *m, struct err *err)
{
    const struct train_opts *o = m->train->opts;
    const char *place = NULL, *name = m->tables[0].name;

    if (o->devices[0].kind != DEVICE_CPU)
        place = "a GPU; use --devices cpu";
    else if (o->mean_of_weights)
        place = "a loss whose mean is over weights (class weights, ignored labels)";
    else if (o->whole_gradients)
        place = "whole gradients";
    for (uint32_t i = 0; place == NULL && i < o->model.n_frozen_rows; i++)
        for (uint32_t k = 0; k < m->n_tables; k++)
            if (fnmatch(o->model.frozen_rows[i].match, m->tables[k].name, 0) == 0) {
                place = "/model/frozen_rows of this parameter";
                name = m->tables[k].name;
            }
    if (place == NULL)
        return ps_bound_of(o->ps) > 0 ? check_statistics(m, err) : 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "/parameter_server: '%s' is on parameter servers, which do not support %s; %s",
                   name, place,
                   ps_wants_dense(o->ps) ? "set /parameter_server/dense to \"workers\""
                                         : "exclude the table by /parameter_server/tables");
}

static void describe_table(struct remote *m, uint32_t i, const char *name, uint64_t rows,
                           uint32_t width)
{
    const struct train_opts *o = m->train->opts;

    m->tables[i] = (struct ps_table){ .name = name,
                                      .rows = rows,
                                      .width = width,
                                      .first_shard = ps_first_shard_of(i, rows),
                                      .rate_factor = 1,
                                      .weight_decay = o->optimizer.hyper.weight_decay,
                                      .is_dense = i >= m->n };
    apply_group(o, &m->tables[i]);
    apply_rules(o, &m->tables[i]);
}

/* Describes all tables, then the dense parameters in the order of the arena. */
static void describe(struct remote *m, struct table_fill *fills)
{
    const struct graph *g = m->train->model.graph;
    uint32_t n, n_params, next = m->n;
    const struct graph_remote *tables = graph_remotes(g, &n);
    const struct graph_param *p = graph_params(g, &n_params);

    for (uint32_t i = 0; i < n; i++) {
        fills[i] = tables[i].fill;
        m->compact[i].width = tables[i].width;
        describe_table(m, i, tables[i].name, tables[i].rows, tables[i].width);
    }
    for (uint32_t i = 0; next < m->n_tables && i < n_params; i++) {
        if (p[i].kind != GRAPH_TRAINED)
            continue;
        fills[next] = (struct table_fill){ .kind = TABLE_FROM_FILE };
        m->dense[next - m->n] = &p[i];
        describe_table(m, next, p[i].name, ps_dense_rows(p[i].elements), PS_DENSE_WIDTH);
        next++;
    }
    CHECK(next == m->n_tables);
}

static int open_places(struct remote *m)
{
    uint32_t n = m->train->opts->n_devices;

    m->clients = calloc(n, sizeof(struct ps_client *));
    m->places = calloc(n, sizeof(*m->places));
    for (uint32_t i = 0; m->places != NULL && i < n; i++) {
        m->places[i] = calloc((size_t)m->n_tables - m->n + 1, sizeof(**m->places));
        if (m->places[i] == NULL)
            return ERR_NOMEM;
    }
    return m->clients != NULL && m->places != NULL ? 0 : ERR_NOMEM;
}

static int open_tables(struct remote *m, struct err *err)
{
    const struct train_opts *o = m->train->opts;
    struct table_fill *fills = calloc(m->n_tables, sizeof(*fills));
    int rc;

    m->compact = calloc((size_t)m->n + 1, sizeof(*m->compact));
    m->listed = calloc((size_t)m->n + 1, sizeof(*m->listed));
    m->tables = calloc(m->n_tables, sizeof(*m->tables));
    m->dense = calloc((size_t)m->n_tables - m->n + 1, sizeof(*m->dense));
    if (fills == NULL || m->compact == NULL || m->listed == NULL || m->tables == NULL ||
        m->dense == NULL || open_places(m) < 0) {
        free(fills);
        return err_set(err, ERR_NOMEM, "remote parameters: out of memory");
    }
    describe(m, fills);
    rc = check_options(m, err);
    if (rc == 0)
        rc = ps_leader_open(&(struct ps_leader_opts){ .tables = m->tables,
                                                      .n_tables = m->n_tables,
                                                      .optimizer = o->optimizer.type,
                                                      .hyper = &o->optimizer.hyper,
                                                      .average = o->optimizer.average.decay,
                                                      .staleness = ps_staleness_of(o->ps),
                                                      .n_lanes = ps_bound_of(o->ps) > 0 ? o->lanes : 0,
                                                      .bound = ps_bound_of(o->ps),
                                                      .check_every =
                                                          o->health.check_weights_every_steps,
                                                      .fills = fills },
                            &m->leader, err);
    free(fills);
    return rc;
}

int remote_open(struct train *t, struct err *err)
{
    uint32_t n, n_dense = remote_count_dense(t);
    struct remote *m;
    int rc;

    (void)graph_remotes(t->model.graph, &n);
    if (n + n_dense == 0)
        return 0;
    if (n + n_dense > PS_TABLES_MAX)
        return err_set(
            err, ERR_UNSUPPORTED,
            "/parameter_server: %u parameters are on parameter servers, which support %d",
            n + n_dense, PS_TABLES_MAX);
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return err_set(err, ERR_NOMEM, "remote parameters: out of memory");
    t->remote = m;
    m->train = t;
    m->n = n;
    m->n_tables = n + n_dense;
    rc = open_tables(m, err);
    if (rc < 0)
        return rc;
    m->engine = (struct engine_remote){ .n_tables = n,
                                        .tables = m->compact,
                                        .open = open_clients,
                                        .begin = begin,
                                        .lookup = lookup,
                                        .values = values,
                                        .push = push,
                                        .arg = m };
    return 0;
}

void remote_close(struct remote *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; m->clients != NULL && i < m->train->opts->n_devices; i++)
        ps_client_close(m->clients[i]);
    for (uint32_t i = 0; m->places != NULL && i < m->train->opts->n_devices; i++)
        free(m->places[i]);
    free(m->places);
    ps_leader_close(m->leader);
    free(m->dense);
    remote_free_listed(m);
    free(m->listed);
    free(m->loaded);
    free(m->compact);
    free(m->tables);
    free(m->clients);
    free(m);
}

struct engine_remote *remote_engine(const struct train *t)
{
    return t->remote != NULL ? &t->remote->engine : NULL;
}

bool remote_has_tables(const struct train *t)
{
    return t->remote != NULL && t->remote->n > 0;
}

/* ---- checkpoints and exports ---- */

int remote_loaded(struct train *t, const struct ckpt_info *info, struct err *err)
{
    struct remote *m = t->remote;

    free(m->loaded);
    m->loaded = strdup(info->path);
    m->loaded_step = info->meta.step;
    return m->loaded != NULL ? 0 : err_set(err, ERR_NOMEM, "remote parameters: out of memory");
}

int remote_can_write(const struct train *t, struct err *err)
{
    if (t->generation.comm == NULL) /* at rest, after a generation that did not end in order */
        return err_set(err, ERR_PEER,
                       "the tables are on parameter servers, to which this task has no connection");
    return 0;
}

static bool has_dynamic(const struct remote *m)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->tables[i].rows == 0)
            return true;
    return false;
}

int remote_count(struct train *t, struct ckpt_sizes **out, uint32_t *n, struct err *err)
{
    struct remote *m = t->remote;
    struct ps_port port;
    struct ckpt_sizes *sizes;
    const uint32_t *servers;
    int rc;

    *out = NULL;
    *n = 0;
    if (m == NULL || !has_dynamic(m))
        return 0;
    sizes = calloc(m->n_tables, sizeof(*sizes));
    if (sizes == NULL)
        return err_set(err, ERR_NOMEM, "remote parameters: out of memory");
    port = ps_comm_port(t->generation.comm, 0);
    rc = ps_leader_find_readers(m->leader, &port, &m->route, &servers, err);
    if (rc == 0)
        rc = ps_count(&port, &m->route, remote_version(m), servers, m->n_tables, sizes, err);
    if (rc < 0) { /* a connection failed: the generation ends, which is no failure of the storage */
        free(sizes);
        return err_wrap(err, rc == ERR_NOMEM ? rc : ERR_CANCELED, "parameter servers");
    }
    *out = sizes;
    *n = m->n_tables;
    return 0;
}

int remote_write(struct train *t, struct ckpt_row_files *files, struct err *err)
{
    struct ps_port port = ps_comm_port(t->generation.comm, 0);
    struct ps_save_opts o = { .step = remote_version(t->remote),
                              .stall_ms = t->generation.opts.deadline_ms,
                              .files = files,
                              .name = remote_name_server,
                              .arg = t };
    int rc = ps_leader_find_readers(t->remote->leader, &port, &t->remote->route, &o.servers, err);

    /* a connection fails: the generation ends, which is no failure of the storage */
    return rc < 0 ? err_wrap(err, ERR_CANCELED, "parameter servers")
                  : ps_save(&port, &t->remote->route, &o, err);
}

/* ---- a step ---- */

/* A double in words that survive the addition of zeros in float32: four integers of 16 bits. */
static void write_double(double x, float out[4])
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    for (int i = 0; i < 4; i++)
        out[i] = (float)(bits >> 16 * i & 0xffff);
}

static double read_double(const float in[4])
{
    uint64_t bits = 0;
    double x;

    for (int i = 0; i < 4; i++)
        bits |= (uint64_t)in[i] << 16 * i;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

int remote_collect(struct replica *r, uint64_t step, float *control, struct err *err)
{
    struct train *t = r->train;
    struct ps_port port = ps_comm_port(t->generation.comm, r->local);
    struct ps_votes votes;
    int rc;

    if (t->remote == NULL || !generation_is_coordinator(&t->generation))
        return 0;
    rc = ps_leader_collect(t->remote->leader, &port, &t->remote->route, step + t->remote->ahead,
                           &votes, err);
    if (rc < 0 && votes.differ) {
        char first[64];

        snprintf(first, sizeof(first), "%s", remote_name_server(t, votes.servers[0]));
        return err_set(err, rc,
                       "%s and %s have different rows of shard %u before step %" PRIu64
                       ": a processor or memory of one of them stored a wrong value; all tasks return to "
                       "the newest checkpoint",
                       first, remote_name_server(t, votes.servers[1]), votes.shard, step);
    }
    if (rc < 0)
        return err_wrap(err, rc, "votes of the parameter servers");
    if (votes.wants_save && t->opts->checkpoint.directory != NULL)
        t->saving.is_due = t->saving.is_urgent = true;
    control[CONTROL_REMOTE_BAD] = !votes.is_finite;
    write_double(votes.squares, control + CONTROL_REMOTE_SQUARES);
    return 0;
}

void remote_read_control(struct replica *r, const float *control, struct step_result *out)
{
    out->remote_bad = control[CONTROL_REMOTE_BAD] > 0;
    r->device->remote_squares = read_double(control + CONTROL_REMOTE_SQUARES);
}

void remote_commit(struct replica *r, uint64_t step, const struct optim_hyper *hyper)
{
    struct remote *m = r->train->remote;
    struct err err;

    if (m != NULL)
        (void)ps_client_commit(m->clients[r->local], step + m->ahead, hyper, &err); /* the next wait fails too */
}
