/* plan.c - makes and executes a plan. */
#include <string.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/err.h"
#include "device/cuda.h"
#include "graph/plan_priv.h"
#include "tensor/packed.h"

static void bind_base(struct plan *p, enum plan_base base, void *address)
{
    size_t i;

    for (i = 0; i < p->memory.binds[base].n; i++)
        *p->memory.binds[base].at[i].at = (char *)address + p->memory.binds[base].at[i].offset;
}

static int run_passes(struct plan *p, const struct plan_opts *opts, struct err *err)
{
    /* The capability of a GPU is checked by the caller; no device is accessible here. */
    int rc = opts->cuda == NULL ? plan_precision_check(opts->precision, 0, err) : 0;

    if (rc == 0)
        rc = plan_build(p, opts, err);
    if (rc == 0)
        rc = plan_fuse(p, err);
    if (rc == 0)
        plan_fold_release(p);
    if (rc == 0 && p->types.half != TENSOR_NONE)
        rc = plan_precision(p, err);
    if (rc == 0)
        rc = plan_layouts(p, err);
    if (rc == 0)
        rc = plan_remote(p, err);
    if (rc == 0)
        rc = plan_gradients(p, err);
    if (rc == 0)
        rc = plan_share(p, err);
    if (rc == 0)
        rc = plan_calls(p, err);
    if (rc == 0)
        rc = plan_place(p, err);
    if (rc < 0 || p->device.cuda == NULL)
        return rc;
    rc = plan_device_open(p, err);
    if (rc == 0)
        bind_base(p, PLAN_CONSTANTS, p->device.constants);
    return rc;
}

int plan_new(const struct graph *g, const struct plan_opts *opts, struct plan **out,
             struct err *err)
{
    struct plan *p = calloc(1, sizeof(*p));
    int rc;

    if (p == NULL)
        return plan_no_memory(err);
    p->g = g;
    p->purpose = opts->purpose;
    p->batch = opts->batch;
    p->device.cuda = opts->cuda;
    p->types.half = plan_precision_half(opts->precision);
    p->types.tf32 = opts->precision == PLAN_TF32;
    p->loss.value = p->loss.weight = GRAPH_NONE;
    p->training = opts->purpose == PLAN_TRAIN || (opts->purpose == PLAN_RUN && opts->training);
    p->inputs.feed_grads = opts->purpose == PLAN_RUN && opts->feed_grads;
    rc = run_passes(p, opts, err);
    if (rc < 0) {
        plan_free(p);
        if (opts->purpose == PLAN_RUN)
            return err_wrap(err, rc, "model '%s'", g->file.path);
        return err_wrap(err, rc, "model '%s' with %u samples a call", g->file.path, opts->batch);
    }
    *out = p;
    return 0;
}

const char *const *plan_notes(const struct plan *p, uint32_t *n)
{
    *n = (uint32_t)p->notes.n;
    return (const char *const *)p->notes.at;
}

const char *const *plan_warnings(const struct plan *p, uint32_t *n)
{
    *n = (uint32_t)p->warnings.n;
    return (const char *const *)p->warnings.at;
}

void plan_free(struct plan *p)
{
    size_t i;

    if (p == NULL)
        return;
    for (i = 0; i < p->calls.states.n; i++)
        p->calls.states.at[i].free_state(p->calls.states.at[i].state);
    plan_device_close(p);
    VEC_FINI(p->values);
    VEC_FINI(p->building.sequences);
    VEC_FINI(p->building.selections);
    VEC_FINI(p->nodes);
    VEC_FINI(p->memory.blocks);
    for (i = 0; i < PLAN_BASES; i++)
        VEC_FINI(p->memory.binds[i]);
    VEC_FINI(p->calls.forward);
    VEC_FINI(p->calls.backward);
    VEC_FINI(p->calls.ready);
    VEC_FINI(p->calls.zeros);
    VEC_FINI(p->calls.states);
    VEC_FINI(p->attentions);
    plan_fold_free(p);
    arena_fini(&p->mem);
    VEC_FINI(p->notes);
    VEC_FINI(p->warnings);
    free(p);
}

const struct plan_attention *plan_attentions(const struct plan *p, uint32_t *n)
{
    *n = (uint32_t)p->attentions.n;
    return p->attentions.at;
}

/* ---- binding ---- */

size_t plan_work_bytes(const struct plan *p)
{
    return p->memory.work_bytes;
}

void plan_bind(struct plan *p, float *params, void *work)
{
    CHECK((uintptr_t)work % 64 == 0);
    if (!p->bound.is_bound || params != p->bound.params) {
        bind_base(p, PLAN_ARENA, params);
        bind_base(p, PLAN_DELAYED, params);
    }
    if (!p->bound.is_bound || work != p->bound.work)
        bind_base(p, PLAN_WORK, work);
    p->remote.has_rows = p->remote.has_rows && work == p->bound.work;
    p->bound.params = params;
    p->bound.work = work;
    p->bound.is_bound = true;
}

void plan_bind_delayed(struct plan *p, float *params)
{
    CHECK(p->bound.is_bound);
    bind_base(p, PLAN_DELAYED, params);
}

const struct tensor *plan_input(struct plan *p, uint32_t i)
{
    CHECK(p->bound.is_bound && i < p->inputs.n);
    return p->values.at[p->inputs.values[i]].fwd;
}

const char *plan_input_name(const struct plan *p, uint32_t i)
{
    CHECK(i < p->inputs.n);
    return p->values.at[p->inputs.values[i]].name;
}

uint64_t plan_n_indices(const struct plan *p, uint32_t call)
{
    const struct op_call *c = call < p->calls.forward.n ? &p->calls.forward.at[call]->call : NULL;

    return c != NULL && c->n_in > 1 && c->in[1] != NULL ? (uint64_t)shape_elements(&c->in[1]->shape)
                                                        : 0;
}

const struct tensor *plan_input_grad(const struct plan *p, uint32_t i)
{
    const struct plan_value *v;

    CHECK(p->bound.is_bound && p->inputs.feed_grads && i < p->inputs.n_feeds);
    v = &p->values.at[p->inputs.values[i]];
    return v->has_grad ? v->grad : NULL;
}

const struct tensor *plan_tensor(const struct plan *p, const char *name)
{
    uint32_t i;

    for (i = 0; i < p->n_kept; i++)
        if (strcmp(p->kept[i].name, name) == 0)
            return p->values.at[p->kept[i].value].fwd;
    return NULL;
}

void plan_set_packed(struct plan *p, struct packed *rows)
{
    uint32_t i;

    CHECK(p->purpose == PLAN_TRAIN && (rows == NULL || p->device.cuda == NULL));
    p->tables.packed = rows;
    for (i = 0; i < p->g->arena.n_tables; i++) {
        size_t word = p->g->arena.tables[i].first_word;

        p->tables.rows[i].marks = rows != NULL ? rows->marks + word : NULL;
        p->tables.rows[i].before = rows != NULL ? rows->before + word : NULL;
    }
}

void plan_record_rows(struct plan *p, size_t at)
{
    CHECK(p->purpose == PLAN_TRAIN && p->device.cuda != NULL && at >= p->g->arena.dense_floats);
    p->tables.rows_at = at;
}

/* ---- execution ---- */

static int run_call(struct plan *p, struct plan_call *call, const struct op_run *run,
                    const char *direction, size_t read_number, struct err *err)
{
    const struct plan_node *n = &p->nodes.at[call->node];
    int rc;

    if (cancel_requested(run->cancel) || (run->stops != NULL && run->stops(run->stops_arg)))
        return err_set(err, ERR_CANCELED, "canceled");
    call->call.run = run;
    if (p->nonfinite != NULL)
        rc = plan_trace_call(p, call, read_number >= p->calls.forward.n, err);
    else
        rc = call->kernel(&call->call, err);
    if (rc == 0 && p->watch.fn != NULL)
        rc = p->watch.fn(p->watch.arg, (uint32_t)read_number, err);
    return rc < 0 ? err_wrap(err, rc, "%s of %s '%s'", direction, n->def->name, n->name) : 0;
}

int plan_refuse(const struct plan *p, const struct op_invalid *found, struct err *err)
{
    const struct plan_node *n;
    struct op_call call;
    int rc;

    if (found->call >= p->calls.forward.n) /* a value from the device is not trusted */
        return err_set(err, ERR_DEVICE, "GPU reported call index %u, but the plan has %zu calls",
                       found->call, p->calls.forward.n);
    call = p->calls.forward.at[found->call]->call;
    call.run = NULL; /* that of the call has ended */
    n = &p->nodes.at[p->calls.forward.at[found->call]->node];
    CHECK(n->def->refuse != NULL);
    rc = n->def->refuse(&call, (size_t)found->at, found->value, err);
    return err_wrap(err, rc, "forward of %s '%s'", n->def->name, n->name);
}

/* Runs calls [begin, end) of forward. */
static int run_forward(struct plan *p, size_t begin, size_t end, const struct op_run *run,
                       struct err *err)
{
    size_t i;
    int rc = 0;

    for (i = begin; i < end && rc == 0; i++)
        rc = run_call(p, p->calls.forward.at[i], run, "forward", i, err);
    return rc;
}

int plan_forward_indices(struct plan *p, const struct op_run *run, struct err *err)
{
    int rc = 0;

    CHECK(p->bound.is_bound);
    if (p->remote.n == 0)
        return 0;
    p->remote.has_rows = false;
    if (p->nonfinite != NULL)
        rc = plan_trace_begin(p, run, err);
    if (rc == 0)
        rc = run_forward(p, 0, p->remote.n_calls, run, err);
    if (rc == 0)
        rc = plan_remote_list(p, run, err);
    p->remote.has_rows = rc == 0;
    return rc;
}

int plan_forward(struct plan *p, const struct op_run *run, struct err *err)
{
    int rc = 0;

    CHECK(p->bound.is_bound && (run->queue != NULL) == (p->device.cuda != NULL));
    CHECK(p->remote.n == 0 || p->remote.has_rows); /* plan_forward_indices() was not called */
    p->remote.has_rows = false;
    if (p->tables.packed != NULL)
        packed_clear(p->tables.packed);
    if (p->remote.packed != NULL)
        packed_clear(p->remote.packed);
    if (p->nonfinite != NULL && p->remote.n > 0)
        plan_trace_remote(p);
    else if (p->nonfinite != NULL)
        rc = plan_trace_begin(p, run, err);
    if (rc == 0)
        rc = run_forward(p, p->remote.n_calls, p->calls.forward.n, run, err);
    if (rc < 0)
        return rc;
    if (p->device.cuda != NULL)
        return plan_device_copy_results(p, run, err);
    if (p->loss.value != GRAPH_NONE)
        p->loss.last = *(const float *)p->values.at[p->loss.value].fwd->data;
    if (p->loss.weight != GRAPH_NONE)
        p->loss.last_weight = *(const float *)p->values.at[p->loss.weight].fwd->data;
    return 0;
}

static int fill_zero(struct plan *p, const struct op_run *run, float *at, size_t n, struct err *err)
{
    if (p->device.cuda != NULL)
        return p->device.cuda->fill(at, 0, n * sizeof(float), run->queue, err);
    memset(at, 0, n * sizeof(float));
    return 0;
}

/* Every row that forward read is marked now: assigns places to all of them and clears their
 * values. */
static void open_tables(struct plan *p, float *grads)
{
    float *values = grads + p->g->arena.dense_floats;
    uint32_t i;

    packed_index(p->tables.packed);
    memset(values, 0, packed_floats(p->tables.packed) * sizeof(float));
    for (i = 0; i < p->g->arena.n_tables; i++)
        p->tables.rows[i].values = values + p->tables.packed->first[i];
}

/* Clears the record of rows read. */
static int open_read_rows(struct plan *p, const struct op_run *run, float *grads, struct err *err)
{
    for (uint32_t i = 0; i < p->g->arena.n_tables; i++)
        p->tables.rows[i].read = grads + p->tables.rows_at + 64 * p->g->arena.tables[i].first_word;
    return fill_zero(p, run, grads + p->tables.rows_at, 64 * p->g->arena.table_words, err);
}

int plan_backward(struct plan *p, const struct op_run *run, float *grads, plan_ready_fn *ready,
                  void *arg, struct err *err)
{
    size_t next = 0, i;
    int rc = 0;

    CHECK(p->bound.is_bound && (p->purpose == PLAN_TRAIN || p->inputs.feed_grads));
    if (grads != p->bound.grads)
        bind_base(p, PLAN_GRADS, grads);
    p->bound.grads = grads;
    CHECK(p->remote.n == 0 || p->remote.packed != NULL);
    if (p->tables.packed != NULL)
        open_tables(p, grads);
    if (p->remote.packed != NULL)
        plan_remote_open(p, grads);
    if (p->tables.rows_at > 0)
        rc = open_read_rows(p, run, grads, err);
    for (i = 0; i < p->calls.zeros.n && rc == 0; i++)
        if (p->tables.packed == NULL || p->calls.zeros.at[i].offset < p->g->arena.dense_floats)
            rc =
                fill_zero(p, run, grads + p->calls.zeros.at[i].offset, p->calls.zeros.at[i].n, err);
    if (rc < 0)
        return rc;
    for (i = 0;; i++) {
        /* Reports ranges that are final before call i; the first range may be final before any
         * call. */
        while (next < p->calls.ready.n && (p->calls.ready.at[next].call == GRAPH_NONE ||
                                           (size_t)p->calls.ready.at[next].call < i)) {
            if (ready != NULL && (p->tables.packed == NULL ||
                                  p->calls.ready.at[next].offset < p->g->arena.dense_floats))
                ready(arg, p->calls.ready.at[next].offset, p->calls.ready.at[next].n);
            next++;
        }
        if (i == p->calls.backward.n)
            break;
        rc = run_call(p, p->calls.backward.at[i], run, "backward", p->calls.forward.n + i, err);
        if (rc < 0)
            return rc;
    }
    if (p->nonfinite != NULL)
        plan_trace_tables(p);
    return 0;
}

float plan_loss(const struct plan *p)
{
    CHECK(p->loss.value != GRAPH_NONE);
    return p->device.cuda == NULL ? p->loss.last
                                  : *(const float *)plan_device_result(p, p->loss.value);
}

const float *plan_loss_at(const struct plan *p)
{
    CHECK(p->loss.value != GRAPH_NONE);
    return p->values.at[p->loss.value].fwd->data;
}

const float *plan_loss_weight_at(const struct plan *p)
{
    return p->loss.weight != GRAPH_NONE ? p->values.at[p->loss.weight].fwd->data : NULL;
}

static double read_number(const struct plan *p, uint32_t value, size_t i)
{
    const struct tensor *t = p->values.at[value].fwd;
    const void *data = p->device.cuda == NULL ? t->data : plan_device_result(p, value);

    CHECK(t->dtype == TENSOR_F32 || t->dtype == TENSOR_F64);
    return t->dtype == TENSOR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

float plan_loss_weight(const struct plan *p)
{
    CHECK(p->loss.weight != GRAPH_NONE);
    return p->device.cuda == NULL ? p->loss.last_weight
                                  : *(const float *)plan_device_result(p, p->loss.weight);
}

uint32_t plan_metric_words(const struct plan *p, uint32_t i)
{
    CHECK(i < p->n_metrics);
    return (uint32_t)tensor_elements(&p->values.at[p->metrics[i].value].tensor) + 1;
}

void plan_metric_add(const struct plan *p, uint32_t i, double *sums)
{
    uint32_t n = plan_metric_words(p, i) - 1, k;

    for (k = 0; k < n; k++)
        sums[k] += read_number(p, p->metrics[i].value, k);
    sums[n] += read_number(p, p->metrics[i].weight, 0);
}

double plan_flops(const struct plan *p)
{
    double flops = 0;
    size_t i;

    for (i = 0; i < p->nodes.n; i++)
        flops += p->nodes.at[i].is_alias ? 0 : p->nodes.at[i].flops;
    return flops;
}

uint32_t plan_calls_count(const struct plan *p)
{
    return (uint32_t)(p->calls.forward.n + p->calls.backward.n);
}

struct plan_call_info plan_call_info(const struct plan *p, uint32_t i)
{
    bool backward = i >= p->calls.forward.n;
    const struct plan_call *call;
    const struct plan_node *n;

    CHECK(i < plan_calls_count(p));
    call = backward ? p->calls.backward.at[i - p->calls.forward.n] : p->calls.forward.at[i];
    n = &p->nodes.at[call->node];
    return (struct plan_call_info){ .op = backward && call->call.din == NULL ? "" : n->def->name,
                                    .node = n->name,
                                    .backward = backward };
}

void plan_watch(struct plan *p, plan_watch_fn *fn, void *arg)
{
    p->watch = (struct plan_watch){ fn, arg };
}
