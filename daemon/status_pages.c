/* status_pages.c - the status page and its data over HTTP.
 *
 * A request waits on the HTTP thread for a document that the loop makes, because the membership
 * belongs to the loop. One document serves all requests of FRESH_MS, so that any number of clients
 * costs the loop a bounded time. If the loop does not answer within ANSWER_MS, or the task ends, the
 * client receives the last document, or 503 before the first one. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/log_ring.h"
#include "daemon/page.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/status.h"
#include "daemon/status_json.h"
#include "loop/loop.h"
#include "metrics/metrics.h"
#include "proto/trainerd.pb-c.h"

enum {
    FRESH_MS = 200,
    ANSWER_MS = 1000,
    METRICS_MS = 1000,
    OPEN_MS = 2500,   /* a page that is open reads the status each second */
    LINGER_MS = 1500, /* from the last document to the end of the server, if a page is open */
};

struct status_pages {
    struct run *run;
    struct status_metrics *metrics;
    uint64_t updated_ms; /* the loop's: last update of the metrics */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct buf json;  /* the document; empty: none yet */
    uint64_t made_ms; /* of it */
    bool is_asked;    /* the loop has been asked to make one */
    bool has_ended;   /* the loop makes none any more */
    bool is_final;    /* the document states how the task ended */
    uint64_t opened_ms; /* clock_ms() of the last request of a page; 0: none yet */
};

/* ---- the loop ---- */

static void make_document(void *arg)
{
    struct status_pages *p = arg;
    Trainerd__V1__StatusReply s = TRAINERD__V1__STATUS_REPLY__INIT;
    struct arena a = { 0 };

    if (p->has_ended) /* written on this thread only */
        return;
    run_update_progress(p->run); /* a document is never older than a metric that was read before it */
    p->run->mode->describe(p->run, &s, &a);
    pthread_mutex_lock(&p->lock);
    buf_reset(&p->json);
    status_json(&s, &p->json);
    if (p->json.failed)
        buf_fini(&p->json);
    p->made_ms = clock_ms();
    p->is_asked = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    arena_fini(&a);
}

void status_pages_tick(struct run *r)
{
    Trainerd__V1__StatusReply s = TRAINERD__V1__STATUS_REPLY__INIT;
    struct status_pages *p = r->http.pages;
    struct arena a = { 0 };

    if (p == NULL || clock_ms() - p->updated_ms < METRICS_MS)
        return;
    p->updated_ms = clock_ms();
    metrics_http_expire(r->http.server);
    r->mode->describe(r, &s, &a);
    status_metrics_update(p->metrics, &s);
    arena_fini(&a);
}

void status_pages_view(struct run *r)
{
    if (r->http.pages != NULL)
        r->http.pages->updated_ms = 0;
}

void status_pages_end(struct status_pages *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->has_ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static const char *final_phase(int code)
{
    return code == EXIT_COMPLETE ? "complete" : code == EXIT_STOPPED ? "stopped" : "failed";
}

void status_pages_final(struct run *r)
{
    struct status_pages *p = r->http.pages;

    report_phase(r->report, final_phase(r->exit.code));
    report_trouble(r->report, r->exit.code == EXIT_COMPLETE ? "" : r->exit.text);
    if (p == NULL)
        return;
    make_document(p);
    p->is_final = true;
}

void status_pages_linger(struct status_pages *p)
{
    struct timespec until;
    uint64_t now_ms = clock_ms(), end_ms;

    if (p == NULL || !p->is_final)
        return;
    pthread_mutex_lock(&p->lock);
    end_ms = p->made_ms + LINGER_MS;
    if (p->opened_ms != 0 && now_ms - p->opened_ms < OPEN_MS && now_ms < end_ms) {
        until = clock_after_ms(end_ms - now_ms);
        while (pthread_cond_timedwait(&p->changed, &p->lock, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- the HTTP thread ---- */

static void wait_for_document(struct status_pages *p)
{
    struct timespec until = clock_after_ms(ANSWER_MS);
    int rc = 0;

    if (!p->is_asked)
        loop_post(p->run->loop, make_document, p);
    p->is_asked = true;
    while (p->is_asked && !p->has_ended && rc == 0)
        rc = pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

static bool print_status(void *arg, struct buf *out)
{
    struct status_pages *p = arg;
    bool has_document;

    pthread_mutex_lock(&p->lock);
    if (!p->has_ended && (p->json.len == 0 || clock_ms() - p->made_ms >= FRESH_MS))
        wait_for_document(p);
    has_document = p->json.len > 0;
    buf_add(out, p->json.data, p->json.len);
    pthread_mutex_unlock(&p->lock);
    return has_document;
}

/* The status for a page that is open. */
static bool print_page_status(void *arg, struct buf *out)
{
    struct status_pages *p = arg;

    pthread_mutex_lock(&p->lock);
    p->opened_ms = clock_ms();
    pthread_mutex_unlock(&p->lock);
    return print_status(p, out);
}

static bool print_curve(void *arg, struct buf *out)
{
    const struct status_pages *p = arg;

    report_print_curve(p->run->report, out);
    return true;
}

static bool print_events(void *arg, struct buf *out)
{
    struct log_ring_record *records = malloc(LOG_RING_RECORDS * sizeof(*records));
    Trainerd__V1__LogRecord *list = calloc(LOG_RING_RECORDS, sizeof(*list)),
                            *refs[LOG_RING_RECORDS];
    Trainerd__V1__LogsReply reply = TRAINERD__V1__LOGS_REPLY__INIT;

    (void)arg;
    CHECK(records != NULL && list != NULL);
    reply.n_records = log_ring_read(0, true, records, LOG_RING_RECORDS, &reply.last);
    reply.records = refs;
    for (size_t i = 0; i < reply.n_records; i++) {
        trainerd__v1__log_record__init(&list[i]);
        list[i].number = records[i].number;
        list[i].time_us = records[i].time_us;
        list[i].level = (char *)log_level_name(records[i].level);
        list[i].event = records[i].event;
        list[i].message = records[i].message;
        refs[i] = &list[i];
    }
    status_json_records(&reply, out);
    free(records);
    free(list);
    return true;
}

static void add_file(const char *name, struct buf *out)
{
    for (size_t i = 0; i < n_page_files; i++)
        if (strcmp(page_files[i].name, name) == 0)
            buf_add(out, page_files[i].text, *page_files[i].bytes);
}

static bool print_html(void *arg, struct buf *out)
{
    (void)arg;
    add_file("page.html", out);
    return true;
}

static bool print_css(void *arg, struct buf *out)
{
    (void)arg;
    add_file("page.css", out);
    return true;
}

static bool print_js(void *arg, struct buf *out)
{
    (void)arg;
    add_file("page.js", out);
    return true;
}

static bool print_charts(void *arg, struct buf *out)
{
    (void)arg;
    add_file("charts.js", out);
    return true;
}

static const struct metrics_page pages[] = {
    { "/", "text/html; charset=utf-8", print_html },
    { "/page.css", "text/css; charset=utf-8", print_css },
    { "/page.js", "text/javascript; charset=utf-8", print_js },
    { "/charts.js", "text/javascript; charset=utf-8", print_charts },
    { "/page.json", "application/json", print_page_status },
    { "/api/v1/status", "application/json", print_status },
    { "/api/v1/curve", "application/json", print_curve },
    { "/api/v1/events", "application/json", print_events },
    { "/status", "application/json", print_status }, /* an earlier name of /api/v1/status */
};

static bool is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0;
}

/* Splits the text that metrics_http_open() has accepted; the port may have been chosen by the system. An address that
 * means every interface is announced with the host that the other tasks use. */
static void set_address(struct run *r, const char *listen)
{
    const char *colon = strrchr(listen, ':'), *self;
    unsigned port = metrics_http_port(r->http.server);
    char host[sizeof(r->http.page)] = "127.0.0.1";

    if (colon != NULL)
        snprintf(host, sizeof(host), "%.*s", (int)(colon - listen), listen);
    log_info("page", "status page at http://%s:%u/, JSON below /api/v1/, Prometheus at /metrics",
             host, port);
    if (is_any(host) && !r->s->cluster->is_local) {
        self = r->s->cluster->self->address;
        snprintf(host, sizeof(host), "%.*s", (int)(strrchr(self, ':') - self), self);
    }
    snprintf(r->http.page, sizeof(r->http.page), "%.255s:%u", host, port);
}

/* The names of the cluster, each also without its domain, and those of --metrics-hosts. Memory from `a`. */
static void fill_hosts(const struct run *r, const char *more, struct metrics_http_opts *o,
                       struct arena *a)
{
    const struct cluster *c = r->s->cluster;
    size_t n = strlen(more != NULL ? more : "") + 2 * (size_t)c->n_tasks + 1;
    const char **hosts = arena_alloc(a, n * sizeof(*hosts));
    char *list = arena_strdup(a, more != NULL ? more : ""), *rest = NULL;

    CHECK(hosts != NULL && list != NULL);
    o->hosts = hosts;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest))
        hosts[o->n_hosts++] = word;
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        char *name = c->tasks[i].host != NULL ? arena_strdup(a, c->tasks[i].host) : NULL;

        if (name == NULL || strchr(name, ':') != NULL)
            continue; /* an address is accepted without a list */
        hosts[o->n_hosts++] = c->tasks[i].host;
        name[strcspn(name, ".")] = '\0';
        hosts[o->n_hosts++] = name;
    }
}

int status_pages_open(struct run *r, const char *listen, const char *hosts, struct err *err)
{
    struct status_pages *p = calloc(1, sizeof(*p));
    struct metrics_http_opts o = { .listen = listen, .pages = pages, .n_pages = COUNT_OF(pages), .arg = p };
    pthread_condattr_t monotonic;
    struct arena a = { 0 };
    int rc;

    CHECK(p != NULL);
    p->run = r;
    p->metrics = status_metrics_new(r->http.metrics);
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    r->http.pages = p;
    fill_hosts(r, hosts, &o, &a);
    rc = metrics_http_open(r->http.metrics, &o, &r->http.server, err);
    arena_fini(&a);
    if (rc == 0)
        set_address(r, listen);
    return rc;
}

void status_pages_free(struct status_pages *p)
{
    if (p == NULL)
        return;
    status_metrics_free(p->metrics);
    buf_fini(&p->json);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
