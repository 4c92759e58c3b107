/* groups.c - see groups.h. */
#include "train/groups.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/text.h"
#include "device/device.h"
#include "graph/graph.h"
#include "optim/optim.h"
#include "ps/wants.h"
#include "tensor/packed.h"
#include "tensor/shards.h"
#include "train/train_types.h"

static bool matches(const struct train_params *group, const char *name, bool *used)
{
    bool found = false;

    for (uint32_t i = 0; i < group->n_match; i++)
        if (fnmatch(group->match[i], name, 0) == 0)
            found = used[i] = true;
    return found;
}

/* A pattern that matches nothing is a typo. */
static int check_used(const struct graph *graph, const struct train_params *group, uint32_t g,
                      const bool *used, struct err *err)
{
    const char *names[256];
    uint32_t n, n_remotes, n_names = 0;
    const struct graph_param *p = graph_params(graph, &n);
    const struct graph_remote *remotes = graph_remotes(graph, &n_remotes);

    for (uint32_t i = 0; i < n && n_names < 256; i++)
        if (p[i].kind == GRAPH_TRAINED)
            names[n_names++] = p[i].name;
    for (uint32_t i = 0; i < n_remotes && n_names < 256; i++)
        names[n_names++] = remotes[i].name;
    for (uint32_t i = 0; i < group->n_match; i++) {
        const char *near = text_nearest(group->match[i], names, n_names);

        if (used[i])
            continue;
        return err_set(err, ERR_INPUT,
                       "/optimizer/groups/%u/match: '%s' matches no parameter that trains; %s '%s'",
                       g, group->match[i], near != NULL ? "did you mean" : "the first one is",
                       near != NULL  ? near
                       : n_names > 0 ? names[0]
                                     : "");
    }
    return 0;
}

static int check_lazy(const struct train_opts *o, const struct graph_param *p,
                      const struct train_params *group, uint32_t g, struct err *err)
{
    const struct optim_def *def = optim_get(o->optimizer.type);

    if (group->lazy && def->measure != NULL)
        return err_set(
            err, ERR_INPUT,
            "/optimizer/groups/%u/lazy_rows: %s takes norms over all rows of a parameter; "
            "take lazy_rows out, or another optimizer",
            g, def->name);
    if (group->lazy && !p->is_table)
        return err_set(
            err, ERR_INPUT,
            "/optimizer/groups/%u/lazy_rows: '%s' is no table: something else than Gather "
            "along axis 0 reads it; match tables alone",
            g, p->name);
    return 0;
}

const struct train_params *groups_find(const struct train_opts *o, const char *name)
{
    for (uint32_t g = 0; g < o->n_groups; g++)
        for (uint32_t i = 0; i < o->groups[g].n_match; i++)
            if (fnmatch(o->groups[g].match[i], name, 0) == 0)
                return &o->groups[g];
    return NULL;
}

/* Every pattern must match a trained parameter or a remote table, also where an earlier group
 * applies. Remote tables have their numbers from remote.c. */
static int apply_groups(const struct train_opts *o, const struct graph *graph,
                        struct optim_param *params, const uint32_t *param_of, uint32_t n_params,
                        struct err *err)
{
    uint32_t n, n_remotes;
    const struct graph_param *p = graph_params(graph, &n);
    const struct graph_remote *remotes = graph_remotes(graph, &n_remotes);
    int rc = 0;

    for (uint32_t g = 0; rc == 0 && g < o->n_groups; g++) {
        const struct train_params *group = &o->groups[g];
        bool *used = calloc(group->n_match + 1, sizeof(*used));

        if (used == NULL)
            return err_set(err, ERR_NOMEM, "optimizer groups: out of memory");
        for (uint32_t i = 0; rc == 0 && i < n_params; i++)
            if (matches(group, p[param_of[i]].name, used) &&
                groups_find(o, p[param_of[i]].name) == group) {
                params[i].rate_factor = group->rate_factor;
                params[i].weight_decay = group->weight_decay;
                params[i].adapts = group->adapts;
                params[i].lazy = group->lazy;
                rc = check_lazy(o, &p[param_of[i]], group, g, err);
            }
        for (uint32_t i = 0; i < n_remotes; i++)
            (void)matches(group, remotes[i].name, used); /* sets `used` */
        if (rc == 0)
            rc = check_used(graph, group, g, used, err);
        free(used);
    }
    return rc;
}

/* The stretches of the optimizer: one for each trained parameter, or several between frozen
 * rows. */
struct stretches {
    struct optim_param *at; /* [cap] */
    uint32_t *param_of;     /* [cap] the graph's parameter of each */
    uint32_t n;
};

static int compare_rows(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static bool has_frozen_rows(const struct train_rows *f, const struct graph_param *p)
{
    return p->kind == GRAPH_TRAINED && fnmatch(f->match, p->name, 0) == 0;
}

/* The frozen rows of one parameter, ascending; `rows` has room for those of all entries. */
static int frozen_rows_of(const struct train_opts *o, const struct graph_param *p, uint32_t *rows,
                          uint32_t *n, struct err *err)
{
    int64_t n_rows = p->shape.rank > 0 ? p->shape.dim[0] : 0;

    *n = 0;
    for (uint32_t i = 0; i < o->model.n_frozen_rows; i++) {
        const struct train_rows *f = &o->model.frozen_rows[i];

        for (uint32_t k = 0; has_frozen_rows(f, p) && k < f->n; k++) {
            if (f->rows[k] >= n_rows)
                return err_set(
                    err, ERR_INPUT,
                    "/model/frozen_rows: '%s' has row %u; '%s' has %lld rows, expected 0 to %lld",
                    f->match, f->rows[k], p->name, (long long)n_rows, (long long)n_rows - 1);
            rows[(*n)++] = f->rows[k];
        }
    }
    qsort(rows, *n, sizeof(*rows), compare_rows);
    return 0;
}

/* The stretches of one parameter: its floats without those of frozen rows. */
static int cut(const struct train_opts *o, const struct graph *graph, uint32_t i,
               const struct packed_table *table, uint32_t *rows, struct stretches *s,
               struct err *err)
{
    const struct graph_param *p = &graph_params(graph, &(uint32_t){ 0 })[i];
    size_t width = 0, done = 0;
    uint32_t n_rows = 0, before = s->n;
    int rc = frozen_rows_of(o, p, rows, &n_rows, err);

    if (n_rows > 0)
        width = p->elements / (size_t)p->shape.dim[0];
    for (uint32_t k = 0; rc == 0 && k <= n_rows; k++) {
        size_t end = k < n_rows ? rows[k] * width : p->elements;

        if (end > done) {
            s->param_of[s->n] = i;
            s->at[s->n++] = (struct optim_param){ .first = p->offset + done,
                                                  .n = end - done,
                                                  .table = table,
                                                  .rate_factor = 1,
                                                  .weight_decay = o->optimizer.hyper.weight_decay,
                                                  .adapts = true,
                                                  .skipped = done };
        }
        done = end + width;
    }
    if (rc == 0 && s->n == before)
        return err_set(err, ERR_INPUT,
                       "/model/frozen_rows: all rows of '%s' are frozen; use model.frozen",
                       p->name);
    return rc;
}

/* remote.c refuses frozen rows of remote tables, and states the reason. */
static bool is_remote(const struct graph *graph, const char *match)
{
    uint32_t n;
    const struct graph_remote *remotes = graph_remotes(graph, &n);

    for (uint32_t i = 0; i < n; i++)
        if (fnmatch(match, remotes[i].name, 0) == 0)
            return true;
    return false;
}

static int check_frozen_rows(const struct train_opts *o, const struct graph *graph, struct err *err)
{
    uint32_t n, k;
    const struct graph_param *p = graph_params(graph, &n);

    for (uint32_t i = 0; i < o->model.n_frozen_rows; i++) {
        for (k = 0; k < n && !has_frozen_rows(&o->model.frozen_rows[i], &p[k]); k++)
            ;
        if (k == n && !is_remote(graph, o->model.frozen_rows[i].match))
            return err_set(
                err, ERR_INPUT,
                "/model/frozen_rows: '%s' matches no parameter that trains (the first one is '%s')",
                o->model.frozen_rows[i].match, n > 0 ? p[0].name : "");
    }
    return 0;
}

/* Lists the names of the tables that train, those on parameter servers too. Returns their number, at most `most`. */
static uint32_t list_tables(const struct graph *graph, const char **names, uint32_t most)
{
    uint32_t n, n_remotes, n_names = 0;
    const struct graph_param *p = graph_params(graph, &n);
    const struct graph_remote *remotes = graph_remotes(graph, &n_remotes);

    for (uint32_t i = 0; i < n && n_names < most; i++)
        if (p[i].kind == GRAPH_TRAINED && p[i].is_table)
            names[n_names++] = p[i].name;
    for (uint32_t i = 0; i < n_remotes && n_names < most; i++)
        names[n_names++] = remotes[i].name;
    return n_names;
}

/* The pattern selects no table: states the parameter that it matches, or the table that it may mean. */
static int selects_nothing(const struct graph *graph, const char *pattern, const char *const *names,
                           uint32_t n_names, struct err *err)
{
    const char *near = text_nearest(pattern, names, n_names);
    uint32_t n;
    const struct graph_param *p = graph_params(graph, &n);

    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == GRAPH_TRAINED && fnmatch(pattern, p[i].name, 0) == 0)
            return err_set(err, ERR_INPUT,
                           "/parameter_server/tables: '%s' selects '%s', which is no table: something else than "
                           "Gather along axis 0 reads it; expected patterns that match tables",
                           pattern, p[i].name);
    if (n_names == 0)
        return err_set(err, ERR_INPUT,
                       "/parameter_server/tables: '%s' matches no table: the model has none that trains and that "
                       "only Gather along axis 0 reads; write \"none\"",
                       pattern);
    return err_set(err, ERR_INPUT,
                   "/parameter_server/tables: '%s' matches no table that trains; %s '%s'", pattern,
                   near != NULL ? "did you mean" : "the first one is",
                   near != NULL ? near : names[0]);
}

/* A pattern of the tables for parameter servers that selects nothing is a mistake: the rows would stay on the
 * workers. */
static int check_selection(const struct train_opts *o, const struct graph *graph, struct err *err)
{
    const struct ps_settings *s = o->ps_tables;
    uint32_t n, n_remotes, n_names;
    const char **names;
    int rc = 0;

    if (s == NULL || s->tables != PS_TABLES_LISTED || ps_wants_dense(s))
        return 0;
    (void)graph_params(graph, &n);
    (void)graph_remotes(graph, &n_remotes);
    names = calloc((size_t)n + n_remotes + 1, sizeof(*names));
    if (names == NULL)
        return err_set(err, ERR_NOMEM, "tables: out of memory");
    n_names = list_tables(graph, names, n + n_remotes);
    for (uint32_t i = 0; rc == 0 && i < s->n_patterns; i++) {
        uint32_t k = 0;

        while (k < n_names && fnmatch(s->patterns[i], names[k], 0) != 0)
            k++;
        if (k == n_names)
            rc = selects_nothing(graph, s->patterns[i], names, n_names, err);
    }
    free(names);
    return rc;
}

/* On a GPU the squares of the whole gradient are added in another order, which decides bits if they are
 * clipped. */
static int check_sharded(const struct train_opts *o, const char *name, struct err *err)
{
    const char *other = ps_wants_dense(o->ps_tables)
                            ? "set /parameter_server/dense to \"workers\""
                            : "exclude the table by /parameter_server/tables";

    if (o->devices[0].kind != DEVICE_CPU && ps_staleness_of(o->ps_tables) > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "/parameter_server/staleness: GPUs do not support it, which '%s' needs; use --devices "
                       "cpu, or %s",
                       name, other);
    if (o->devices[0].kind == DEVICE_CPU || o->run.clip_norm == 0)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "/train/clip_norm: /parameter_server selects '%s', whose squares would be added "
                   "as on parameter servers, which GPUs do not support; use --devices cpu, take clip_norm "
                   "out, or %s",
                   name, other);
}

static bool is_cut(const struct train_opts *o, const struct graph_param *p)
{
    for (uint32_t i = 0; i < o->model.n_frozen_rows; i++)
        if (o->model.frozen_rows[i].n > 0 && has_frozen_rows(&o->model.frozen_rows[i], p))
            return true;
    return false;
}

/* Parameter servers support no frozen rows. */
void groups_number_tables(const struct train_opts *o, const struct graph *graph, uint32_t *numbers)
{
    uint32_t n, n_tables, next_table = 0, n_numbered = 0;
    size_t words;
    const struct packed_table *tables = graph_tables(graph, &n_tables, &words);
    const struct graph_param *p = graph_params(graph, &n);

    for (uint32_t i = 0; i < n; i++) {
        const struct packed_table *t =
            p[i].kind == GRAPH_TRAINED && p[i].is_table ? &tables[next_table++] : NULL;

        numbers[i] = 0;
        if (t != NULL && o->ps_tables != NULL && !is_cut(o, &p[i]) &&
            ps_wants(o->ps_tables, p[i].name, t->rows, t->width))
            numbers[i] = ++n_numbered;
    }
}

uint32_t groups_number_dense(const struct train_opts *o, const struct graph *graph,
                             uint32_t *numbers)
{
    uint32_t n, next, first;
    const struct graph_param *p = graph_params(graph, &n);

    (void)graph_remotes(graph, &next);
    for (uint32_t i = 0; i < n; i++)
        next += numbers[i] > 0;
    first = next;
    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == GRAPH_TRAINED && !p[i].is_table && ps_wants_dense(o->ps_tables) &&
            !is_cut(o, &p[i]))
            numbers[i] = ++next;
    return next - first;
}

/* Numbers the parameters that parameter servers would hold. */
static int mark_sharded(const struct train_opts *o, const struct graph *graph, struct stretches *s,
                        struct err *err)
{
    uint32_t n, *numbers;
    const struct graph_param *p = graph_params(graph, &n);
    int rc = 0;

    numbers = calloc((size_t)n + 1, sizeof(*numbers));
    if (numbers == NULL)
        return err_set(err, ERR_NOMEM, "optimizer: out of memory");
    groups_number_tables(o, graph, numbers);
    (void)groups_number_dense(o, graph, numbers);
    for (uint32_t i = 0; rc == 0 && i < s->n; i++) {
        struct optim_param *x = &s->at[i];
        uint32_t number = numbers[s->param_of[i]];

        if (number == 0)
            continue;
        x->first_shard = shard_first(number - 1);
        x->is_sharded = true;
        x->width = x->table != NULL ? x->table->width : PS_DENSE_WIDTH;
        rc = check_sharded(o, p[s->param_of[i]].name, err);
    }
    free(numbers);
    return rc;
}

static int open_stretches(const struct train_opts *o, const struct graph *graph,
                          struct stretches *s, uint32_t *rows, struct err *err)
{
    uint32_t n, n_tables, next_table = 0;
    size_t words;
    const struct packed_table *tables = graph_tables(graph, &n_tables, &words);
    const struct graph_param *p = graph_params(graph, &n);
    int rc = check_frozen_rows(o, graph, err);

    if (rc == 0)
        rc = check_selection(o, graph, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (p[i].kind == GRAPH_TRAINED)
            rc = cut(o, graph, i, p[i].is_table ? &tables[next_table++] : NULL, rows, s, err);
    if (rc == 0)
        rc = mark_sharded(o, graph, s, err);
    return rc < 0 ? rc : apply_groups(o, graph, s->at, s->param_of, s->n, err);
}

int groups_open(const struct train_opts *o, const struct graph *graph, struct optim **out,
                struct err *err)
{
    struct optim_opts opts = { .def = optim_get(o->optimizer.type),
                               .n_parts = o->n_devices,
                               .average = o->optimizer.average.decay };
    struct stretches s = { 0 };
    uint32_t n, *rows;
    const struct graph_param *p = graph_params(graph, &n);
    size_t n_rows = 0, cap = (size_t)n + 1;
    int rc = 0;

    for (uint32_t i = 0; i < o->model.n_frozen_rows; i++) {
        n_rows += o->model.frozen_rows[i].n;
        for (uint32_t k = 0; k < n; k++) /* each frozen row ends a stretch */
            cap += has_frozen_rows(&o->model.frozen_rows[i], &p[k]) ? o->model.frozen_rows[i].n : 0;
    }
    rows = calloc(n_rows + 1, sizeof(*rows));
    s.at = calloc(cap, sizeof(*s.at));
    s.param_of = calloc(cap, sizeof(*s.param_of));
    if (rows == NULL || s.at == NULL || s.param_of == NULL)
        rc = err_set(err, ERR_NOMEM, "optimizer: out of memory");
    if (rc == 0)
        rc = open_stretches(o, graph, &s, rows, err);
    opts.params = s.at;
    opts.n_params = o->ps != NULL && ps_wants_dense(o->ps) ? 0 : s.n; /* the servers update them */
    if (rc == 0)
        rc = optim_new(&opts, out, err);
    free(rows);
    free(s.at);
    free(s.param_of);
    return rc;
}
