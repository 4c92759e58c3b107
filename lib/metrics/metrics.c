/* metrics.c - the registry: a list of families (a name with its help and type) in the order of
 * registration, each with a list of metrics, one per label text.
 *
 * The lists only grow. Registration and printing hold a lock; updates of the values, which are
 * atomics, do not. */
#include "metrics/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/text.h"

enum kind { COUNTER, GAUGE, HISTOGRAM };
enum { BOUNDS_MAX = 32 };

static const char *const kind_names[] = { "counter", "gauge", "histogram" };

struct metric {
    struct metric *next; /* of the same family */
    enum kind kind;
    char *labels;           /* owned; "": no labels */
    _Atomic uint64_t value; /* the bits of a double; for a histogram, the sum of its values */
    _Atomic bool is_known;  /* of a gauge: it has a value */
    uint32_t n_bounds;
    double bounds[BOUNDS_MAX];
    /* counts[i]: values in (bounds[i-1], bounds[i]]; counts[n_bounds]: values above all bounds */
    _Atomic uint64_t counts[BOUNDS_MAX + 1];
};

struct family {
    struct family *next;
    enum kind kind;
    char *name, *help; /* owned */
    struct metric *metrics, **end;
};

struct metrics {
    pthread_mutex_t lock; /* guards the lists */
    struct family *families, **end;
    void (*prologue)(struct buf *out); /* NULL: none */
};

struct metrics *metrics_new(void)
{
    struct metrics *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return NULL;
    pthread_mutex_init(&m->lock, NULL);
    m->end = &m->families;
    return m;
}

static void free_family(struct family *f)
{
    while (f->metrics != NULL) {
        struct metric *next = f->metrics->next;

        free(f->metrics->labels);
        free(f->metrics);
        f->metrics = next;
    }
    free(f->name);
    free(f->help);
    free(f);
}

void metrics_free(struct metrics *m)
{
    if (m == NULL)
        return;
    while (m->families != NULL) {
        struct family *next = m->families->next;

        free_family(m->families);
        m->families = next;
    }
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* ---- registration ---- */

static bool is_name(const char *s)
{
    return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(s) && s[0] != '\0' &&
           !(s[0] >= '0' && s[0] <= '9');
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);

    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

static char *copy(const char *s)
{
    char *c = strdup(s);

    CHECK(c != NULL);
    return c;
}

/* Appends `s` with backslash, newline and, in label values, the quote escaped. A byte that is not
 * valid UTF-8 would make Prometheus reject the whole page, so it is replaced by U+FFFD. */
static void escape(struct buf *out, const char *s, bool in_quotes)
{
    size_t left = strlen(s);

    while (left > 0) {
        size_t n = text_utf8_char(s, left);

        if (*s == '\n')
            buf_str(out, "\\n");
        else if (*s == '\\' || (*s == '"' && in_quotes))
            buf_printf(out, "\\%c", *s);
        else if (n > 0)
            buf_add(out, s, n);
        else
            buf_str(out, "\xef\xbf\xbd");
        n = n > 0 ? n : 1;
        s += n;
        left -= n;
    }
}

void metrics_label(struct buf *labels, const char *name, const char *value)
{
    CHECK(is_name(name) && strcmp(name, "le") != 0); /* "le" is reserved for histograms */
    buf_printf(labels, "%s%s=\"", labels->len > 0 ? "," : "", name);
    escape(labels, value, true);
    buf_str(labels, "\"");
}

/* Checks the conventions that `promtool check metrics` enforces. */
static void check_conventions(const char *name, const char *help, enum kind kind)
{
    CHECK(is_name(name) && text_starts(name, "trainerd_"));
    CHECK(ends_with(name, "_total") == (kind == COUNTER));
    CHECK(!ends_with(name, "_count") && !ends_with(name, "_sum") && !ends_with(name, "_bucket"));
    CHECK(help != NULL && help[0] != '\0');
}

static struct family *family_of(struct metrics *m, const char *name, const char *help,
                                enum kind kind)
{
    struct family *f = m->families;

    while (f != NULL && strcmp(f->name, name) != 0)
        f = f->next;
    if (f != NULL) {
        CHECK(f->kind == kind && strcmp(f->help, help) == 0);
        return f;
    }
    check_conventions(name, help, kind);
    f = calloc(1, sizeof(*f));
    CHECK(f != NULL);
    f->kind = kind;
    f->name = copy(name);
    f->help = copy(help);
    f->end = &f->metrics;
    *m->end = f;
    m->end = &f->next;
    return f;
}

static struct metric *new_metric(struct family *f, const char *labels, const double *bounds,
                                 uint32_t n_bounds)
{
    struct metric *x = calloc(1, sizeof(*x)); /* all bits zero is 0.0 */

    CHECK(x != NULL && n_bounds <= BOUNDS_MAX);
    x->kind = f->kind;
    x->labels = copy(labels);
    x->n_bounds = n_bounds;
    for (uint32_t i = 0; i < n_bounds; i++) {
        CHECK(isfinite(bounds[i]) && (i == 0 || bounds[i - 1] < bounds[i]));
        x->bounds[i] = bounds[i];
    }
    *f->end = x;
    f->end = &x->next;
    return x;
}

static struct metric *metric_of(struct metrics *m, const char *name, const char *labels,
                                const char *help, enum kind kind, const double *bounds,
                                uint32_t n_bounds)
{
    struct family *f;
    struct metric *x;

    if (labels == NULL)
        labels = "";
    pthread_mutex_lock(&m->lock);
    f = family_of(m, name, help, kind);
    x = f->metrics;
    while (x != NULL && strcmp(x->labels, labels) != 0)
        x = x->next;
    if (x == NULL)
        x = new_metric(f, labels, bounds, n_bounds);
    CHECK(x->n_bounds == n_bounds);
    for (uint32_t i = 0; i < n_bounds; i++)
        CHECK(x->bounds[i] == bounds[i]);
    pthread_mutex_unlock(&m->lock);
    return x;
}

struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help)
{
    return metric_of(m, name, labels, help, COUNTER, NULL, 0);
}

struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help)
{
    return metric_of(m, name, labels, help, GAUGE, NULL, 0);
}

struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                 const char *help, const double *bounds, uint32_t n_bounds)
{
    return metric_of(m, name, labels, help, HISTOGRAM, bounds, n_bounds);
}

/* ---- values ---- */

static uint64_t bits_of(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

static double load(const _Atomic uint64_t *from)
{
    uint64_t bits = atomic_load_explicit((_Atomic uint64_t *)from, memory_order_relaxed);
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

static void add(_Atomic uint64_t *to, double v)
{
    uint64_t old = atomic_load_explicit(to, memory_order_relaxed);
    double sum;

    do {
        memcpy(&sum, &old, sizeof(sum));
        sum += v;
    } while (!atomic_compare_exchange_weak_explicit(to, &old, bits_of(sum), memory_order_relaxed,
                                                    memory_order_relaxed));
}

void metric_add(struct metric *c, double v)
{
    CHECK(c->kind == GAUGE || (c->kind == COUNTER && v >= 0));
    add(&c->value, v);
    atomic_store_explicit(&c->is_known, true, memory_order_relaxed);
}

void metric_set(struct metric *g, double v)
{
    CHECK(g->kind == GAUGE);
    atomic_store_explicit(&g->value, bits_of(v), memory_order_relaxed);
    atomic_store_explicit(&g->is_known, true, memory_order_relaxed);
}

void metric_forget(struct metric *g)
{
    CHECK(g->kind == GAUGE);
    atomic_store_explicit(&g->is_known, false, memory_order_relaxed);
}

void metric_observe_many(struct metric *h, double v, uint64_t n)
{
    uint32_t i = 0;

    CHECK(h->kind == HISTOGRAM);
    while (i < h->n_bounds && !(v <= h->bounds[i])) /* NaN counts as above all bounds */
        i++;
    atomic_fetch_add_explicit(&h->counts[i], n, memory_order_relaxed);
    if (n > 0)
        add(&h->value, v * (double)n);
}

void metric_observe(struct metric *h, double v)
{
    metric_observe_many(h, v, 1);
}

/* ---- text ---- */

static void print_value(struct buf *out, double v)
{
    if (isnan(v))
        buf_str(out, " NaN\n");
    else if (isinf(v))
        buf_str(out, v > 0 ? " +Inf\n" : " -Inf\n");
    else {
        buf_str(out, " ");
        buf_f64(out, v);
        buf_str(out, "\n");
    }
}

static void print_series(struct buf *out, const struct family *f, const char *suffix,
                         const char *labels)
{
    buf_printf(out, "%s%s", f->name, suffix);
    if (labels[0] != '\0')
        buf_printf(out, "{%s}", labels);
}

/* Buckets are cumulative. The count is the last bucket, so that both are equal even if values are
 * observed at the same time. */
static void print_histogram(struct buf *out, const struct family *f, const struct metric *h)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i <= h->n_bounds; i++) {
        count += atomic_load_explicit((_Atomic uint64_t *)&h->counts[i], memory_order_relaxed);
        buf_printf(out, "%s_bucket{%s%sle=\"", f->name, h->labels, h->labels[0] != '\0' ? "," : "");
        if (i < h->n_bounds)
            buf_f64(out, h->bounds[i]);
        else
            buf_str(out, "+Inf");
        buf_printf(out, "\"} %llu\n", (unsigned long long)count);
    }
    print_series(out, f, "_sum", h->labels);
    print_value(out, load(&h->value));
    print_series(out, f, "_count", h->labels);
    buf_printf(out, " %llu\n", (unsigned long long)count);
}

static bool is_known(const struct metric *x)
{
    uint64_t n = 0;

    if (x->kind == HISTOGRAM)
        for (uint32_t i = 0; i <= x->n_bounds; i++)
            n += atomic_load_explicit((_Atomic uint64_t *)&x->counts[i], memory_order_relaxed);
    return x->kind == COUNTER || n > 0 ||
           atomic_load_explicit((_Atomic bool *)&x->is_known, memory_order_relaxed);
}

static void print_family(struct buf *out, const struct family *f)
{
    bool has_header = false;

    for (const struct metric *x = f->metrics; x != NULL; x = x->next) {
        if (!is_known(x))
            continue;
        if (!has_header) {
            buf_printf(out, "# HELP %s ", f->name);
            escape(out, f->help, false);
            buf_printf(out, "\n# TYPE %s %s\n", f->name, kind_names[f->kind]);
            has_header = true;
        }
        if (f->kind == HISTOGRAM) {
            print_histogram(out, f, x);
            continue;
        }
        print_series(out, f, "", x->labels);
        print_value(out, load(&x->value));
    }
}

void metrics_set_prologue(struct metrics *m, void (*print)(struct buf *out))
{
    m->prologue = print;
}

void metrics_print(struct metrics *m, struct buf *out)
{
    if (m->prologue != NULL)
        m->prologue(out);
    pthread_mutex_lock(&m->lock);
    for (const struct family *f = m->families; f != NULL; f = f->next)
        print_family(out, f);
    pthread_mutex_unlock(&m->lock);
}
