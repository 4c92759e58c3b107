/* plan_nonfinite.c - non-finite tracing: executes a plan and finds the first call that produces a
 * NaN or an infinity.
 *
 * The tensors of each call are checked before it (those it reads) and after it (those it wrote). A
 * call is the origin if it wrote a NaN without inputs one, or an infinity although all it read was
 * finite. Intended infinities, such as constants of an attention mask and values selected from
 * them, are therefore ignored; a softmax that computes NaN from a row of infinities is reported. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/plan_priv.h"
#include "tensor/packed.h"

struct number_stats { /* statistics about the numbers of a tensor */
    size_t n, bad, first; /* number of elements; of non-finite ones; index of the first non-finite
                             one */
    bool nan, inf;
    double low, high;     /* range of the finite ones; low > high: there are none */
    double value;         /* the first non-finite number */
};

static double wide_half(uint16_t h)
{
    double fraction = h & 0x3ff, value;
    int exponent = h >> 10 & 31;

    if (exponent == 31)
        value = fraction != 0 ? NAN : INFINITY;
    else
        value =
            ldexp(exponent != 0 ? 1024 + fraction : fraction, (exponent != 0 ? exponent : 1) - 25);
    return h >> 15 != 0 ? -value : value;
}

static double number_at(const struct tensor *t, size_t i)
{
    uint32_t bits;
    float x;

    switch (t->dtype) {
    case TENSOR_F64:
        return ((const double *)t->data)[i];
    case TENSOR_F16:
        return wide_half(((const uint16_t *)t->data)[i]);
    case TENSOR_BF16:
        bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
        memcpy(&x, &bits, sizeof(x));
        return x;
    default:
        return ((const float *)t->data)[i];
    }
}

static bool has_numbers(const struct tensor *t)
{
    return t != NULL && t->data != NULL && t->data != PLAN_POISON_ADDRESS &&
           (t->dtype == TENSOR_F32 || t->dtype == TENSOR_F64 || t->dtype == TENSOR_F16 ||
            t->dtype == TENSOR_BF16);
}

struct trace { /* context of a check */
    struct plan *p;
    const struct op_run *run;
    struct err *err;
    int rc; /* error of a GPU; later checks are skipped */
};

static struct number_stats examine(struct trace *h, const struct tensor *original)
{
    struct number_stats s = { .low = INFINITY, .high = -INFINITY };
    struct arena mem = { 0 };
    struct tensor local, *t = &local;

    if (!has_numbers(original) || h->rc < 0)
        return s;
    h->rc = plan_device_read(h->p, h->run, original, &mem, t, h->err);
    if (h->rc < 0) {
        arena_fini(&mem);
        return s;
    }
    s.n = (size_t)tensor_elements(t);
    for (size_t i = 0; i < s.n; i++) {
        double x = number_at(t, i);

        if (isfinite(x)) {
            s.low = x < s.low ? x : s.low;
            s.high = x > s.high ? x : s.high;
            continue;
        }
        if (s.bad++ == 0) {
            s.first = i;
            s.value = x;
        }
        s.nan = s.nan || isnan(x);
        s.inf = s.inf || isinf(x);
    }
    arena_fini(&mem);
    return s;
}

/* ---- the message ---- */

static const char *print_bad(const struct number_stats *s)
{
    return isnan(s->value) ? "nan" : s->value > 0 ? "inf" : "-inf";
}

static void __attribute__((format(printf, 2, 3)))
add(struct plan_nonfinite *c, const char *fmt, ...)
{
    size_t used = strlen(c->text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->text + used, sizeof(c->text) - used, fmt, ap);
    va_end(ap);
}

/* Appends "'y' float32 [8, 10] holds -inf, 1 of 80 numbers". */
static void add_bad(struct plan_nonfinite *c, const char *name, const struct tensor *t,
                    const struct number_stats *s)
{
    char shape[96];

    add(c, "'%s' %s %s holds %s, %zu of %zu numbers", name, tensor_dtype_name(t->dtype),
        shape_print(&t->shape, shape, sizeof(shape)), print_bad(s), s->bad, s->n);
}

static void add_read(struct plan_nonfinite *c, const char *what, const char *name,
                     const struct number_stats *s, bool first)
{
    add(c, "%s%s'%s' ", first ? "; it read " : ", ", what, name);
    if (s->low > s->high)
        add(c, "without a finite number");
    else
        add(c, "from %g to %g%s", s->low, s->high, s->bad > 0 ? " besides infinities" : "");
}

/* Index in the batch; samples are the outermost axis in every layout. UINT32_MAX: not specific to a
 * sample. */
static uint32_t sample_of(const struct plan *p, const struct plan_value *v,
                          const struct number_stats *s)
{
    if (!v->by_sample || p->batch == 0 || s->n % p->batch != 0)
        return UINT32_MAX;
    return (uint32_t)(s->first / (s->n / p->batch));
}

/* ---- before the first call ---- */

int plan_trace_begin(struct plan *p, const struct op_run *run, struct err *err)
{
    static const struct { enum plan_value_kind kind; const char *role; } roles[] = {
        { PLAN_FEED, "the batch: input" }, { PLAN_PARAM, "the weights: parameter" },
    };
    struct plan_nonfinite *c = p->nonfinite;
    struct trace h = { p, run, err, 0 };

    *c = (struct plan_nonfinite){ .sample = UINT32_MAX };
    for (size_t r = 0; r < sizeof(roles) / sizeof(roles[0]); r++)
        for (size_t i = 0; i < p->values.n && !c->found; i++) {
            const struct plan_value *v = &p->values.at[i];
            struct number_stats s;

            if (v->kind != roles[r].kind)
                continue;
            s = examine(&h, v->fwd);
            if (s.bad == 0)
                continue;
            c->found = true;
            c->sample = v->kind == PLAN_FEED && p->batch > 0 && s.n % p->batch == 0
                            ? (uint32_t)(s.first / (s.n / p->batch))
                            : UINT32_MAX;
            add(c, "%s ", roles[r].role);
            add_bad(c, v->name, v->fwd, &s);
        }
    return h.rc;
}

/* ---- a call ---- */

enum { MAX_READ = 24 /* tensors checked per call; an infinity in a later one is not detected */ };

struct inputs {
    struct number_stats seen[MAX_READ];
    const char *what[MAX_READ], *name[MAX_READ];
    uint32_t n;
    bool nan, bad;
};

static void examine_inputs(struct trace *h, struct inputs *r, const char *what,
                           const uint32_t *values, const struct tensor *const *t, uint32_t n)
{
    for (uint32_t i = 0; t != NULL && i < n && r->n < MAX_READ; i++) {
        if (values[i] == GRAPH_NONE || !has_numbers(t[i]))
            continue;
        r->seen[r->n] = examine(h, t[i]);
        r->what[r->n] = what;
        r->name[r->n] = h->p->values.at[values[i]].name;
        r->nan = r->nan || r->seen[r->n].nan;
        r->bad = r->bad || r->seen[r->n].bad > 0;
        r->n++;
    }
}

/* A sum of gradients is a call of Add whose two inputs are not values of the node. */
static bool is_sum(const struct plan_call *call, bool backward)
{
    return backward && call->call.din == NULL;
}

static bool is_statistic(const struct plan *p, uint32_t value)
{
    const struct plan_value *v = &p->values.at[value];

    return v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_STATISTIC;
}

static void check_written(struct trace *h, const struct plan_call *call, bool backward,
                          const struct inputs *r, const char *what, const uint32_t *values,
                          const struct tensor *const *t, uint32_t n)
{
    struct plan *p = h->p;
    const struct plan_node *node = &p->nodes.at[call->node];
    struct plan_nonfinite *c = p->nonfinite;
    /* With packed rows the gradients are elsewhere; the dense gradient contains stale data. */
    bool is_packed = backward && call->call.rows != NULL && call->call.rows->marks != NULL;

    for (uint32_t i = 0; t != NULL && i < n && !c->found; i++) {
        struct number_stats s;

        if ((i == 0 && is_packed) || (values != NULL && values[i] == GRAPH_NONE))
            continue;
        s = examine(h, t[i]);
        if (!(s.nan && !r->nan) && !(s.inf && !r->bad))
            continue;
        c->found = true;
        c->sample = values != NULL ? sample_of(p, &p->values.at[values[i]], &s) : UINT32_MAX;
        add(c, "%s of %s '%s': %s ", backward ? "backward" : "forward",
            values != NULL ? node->def->name : "the sum of gradients at", node->name,
            values != NULL && backward && is_statistic(p, values[i]) ? "the batch's" : what);
        add_bad(c, values != NULL ? p->values.at[values[i]].name : node->name, t[i], &s);
        for (uint32_t k = 0; k < r->n && k < 4; k++)
            add_read(c, r->what[k], r->name[k], &r->seen[k], k == 0);
    }
}

int plan_trace_call(struct plan *p, const struct plan_call *call, bool backward, struct err *err)
{
    const struct plan_node *n = &p->nodes.at[call->node];
    const struct op_call *o = &call->call;
    struct inputs r = { .n = 0 };
    struct trace h = { p, o->run, err, 0 };
    int rc;

    if (p->nonfinite->found)
        return call->kernel(o, err);
    if (is_sum(call, backward)) {
        const struct number_stats a = examine(&h, o->in[0]), b = examine(&h, o->in[1]);

        r.nan = a.nan || b.nan;
        r.bad = a.bad + b.bad > 0;
    } else {
        examine_inputs(&h, &r, "", n->in, o->in, o->n_in);
        if (backward) {
            examine_inputs(&h, &r, "", n->out, o->out, o->n_out);
            examine_inputs(&h, &r, "the gradient of ", n->out, o->dout, o->n_out);
        }
    }
    rc = h.rc < 0 ? h.rc : call->kernel(o, err);
    if (rc < 0)
        return rc;
    if (is_sum(call, backward))
        check_written(&h, call, true, &r, "the gradient", NULL, o->out, 1);
    else if (backward)
        check_written(&h, call, true, &r, "the gradient of", n->in, o->din, o->n_in);
    else
        check_written(&h, call, false, &r, "output", n->out, o->out, o->n_out);
    return h.rc;
}

/* ---- rows of tables ---- */

/* Checks the sums of the gradients of all marked rows. Parameter `first` is the first table. */
static void trace_rows(struct plan *p, const struct packed *packed, const struct packed_rows *rows,
                       uint32_t first)
{
    struct plan_nonfinite *c = p->nonfinite;
    struct trace h = { p, NULL, NULL, 0 }; /* tables are packed on CPUs only */

    for (uint32_t i = 0; packed != NULL && i < packed->n_tables && !c->found; i++) {
        size_t n = packed->first[i + 1] - packed->first[i];
        struct tensor values = { .dtype = TENSOR_F32,
                                 .shape = shape_of(2, (int64_t)(n / packed->tables[i].width),
                                                   (int64_t)packed->tables[i].width),
                                 .data = rows[i].values };
        struct number_stats s = examine(&h, &values);

        if (s.bad == 0)
            continue;
        c->found = true;
        add(c, "backward of Gather: the sum of gradients of rows of ");
        add_bad(c, p->g->params[first + i].name, &values, &s);
    }
}

void plan_trace_tables(struct plan *p)
{
    trace_rows(p, p->tables.packed, p->tables.rows, p->g->arena.first_table);
    trace_rows(p, p->remote.packed, p->remote.rows, p->g->n_params);
}

void plan_trace_remote(struct plan *p)
{
    struct plan_nonfinite *c = p->nonfinite;
    struct trace h = { p, NULL, NULL, 0 }; /* remote tables exist on CPUs only */

    for (uint32_t k = 0; k < p->remote.n; k++) {
        const struct plan_lookup *l = &p->remote.lookups[k];
        const struct graph_remote *r = &p->g->remotes[l->table];

        for (size_t i = 0; i < l->n && !c->found; i++) {
            struct tensor row = { .dtype = TENSOR_F32,
                                  .shape = shape_of(1, (int64_t)r->width),
                                  .data = (float *)(uintptr_t)p->remote.reads[k].values +
                                          (size_t)l->rows[i] * r->width };
            struct number_stats s = examine(&h, &row);

            if (s.bad == 0)
                continue;
            c->found = true;
            add(c, "the weights: a row of parameter ");
            add_bad(c, r->name, &row, &s);
        }
    }
}

void plan_trace_nonfinite(struct plan *p, struct plan_nonfinite *c)
{
    p->nonfinite = c;
}
