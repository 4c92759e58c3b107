/* metrics.h - counters, gauges and histograms, exposed as Prometheus text (format 0.0.4).
 *
 * Metrics are registered at start, updated from any thread (one atomic operation, no lock, no
 * allocation), and read from any thread. Names start with trainerd_ and end with the unit
 * (_seconds, _bytes, _total). */
#ifndef METRICS_METRICS_H
#define METRICS_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct metric;
struct metrics;

struct metrics *metrics_new(void); /* NULL: out of memory */
void metrics_free(struct metrics *m);

/* Appends `name="value"`, escaped, to a label text; inserts a comma before all but the first
 * label. */
void metrics_label(struct buf *labels, const char *name, const char *value);

/* Registers a metric, which `m` owns. `labels` is the text inside the braces, such as
 * `task="worker 1",job="x"` (built by metrics_label()), or NULL. Name, labels and help are copied.
 * The same name may be registered with several labels; help and type must then be equal (CHECK).
 * Returns the existing metric if name and labels are already registered. Never returns NULL: when
 * memory is exhausted the process ends (CHECK). Any thread. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help);
/* `bounds`: the upper bounds, ascending, without +Inf; at most 32; copied. */
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                 const char *help, const double *bounds, uint32_t n_bounds);

void metric_add(struct metric *c, double v); /* for a gauge, or a counter with v >= 0 */
void metric_set(struct metric *g, double v); /* for a gauge */
void metric_forget(struct metric *g); /* for a gauge: its value is unknown until the next metric_set() */
void metric_observe(struct metric *h, double v);                  /* for a histogram */
void metric_observe_many(struct metric *h, double v, uint64_t n); /* n values v */

/* Appends all metrics to *out in the exposition format. A gauge that was never set, and a histogram
 * without a value, is omitted: an absent series means "unknown". A counter begins with 0. */
void metrics_print(struct metrics *m, struct buf *out);
/* From now on metrics_print() begins with what `print` appends. NULL: nothing. Before other threads use `m`. */
void metrics_set_prologue(struct metrics *m, void (*print)(struct buf *out));
/* Appends what the system knows of this process, with the names that all Prometheus clients use:
 * process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds, ... A value that cannot
 * be read is omitted. */
void metrics_print_process(struct buf *out);

/* ---- HTTP server (libmicrohttpd, with its own thread) ---- */
struct metrics_http;
struct metrics_page {
    const char *path, *type; /* "/api/v1/status", "application/json" */
    /* Appends the body, on the HTTP thread. false: it is not available now; the client receives 503. */
    bool (*print)(void *arg, struct buf *out);
};
struct metrics_http_opts {
    const char *listen; /* "port" (on 127.0.0.1), "host:port" or "[v6]:port"; port 0: the system selects a port
                           (metrics_http_port()) */
    const struct metrics_page *pages; /* [n_pages] borrowed */
    size_t n_pages;
    void *arg; /* of the pages; borrowed */
    /* [n_hosts] the names that a request may have as Host beside addresses, localhost, the host of `listen` and the
     * name of this machine; "*.example.com": every name below it, "*": every name. Copied */
    const char *const *hosts;
    size_t n_hosts;
};
/* Starts a server for GET and HEAD of /metrics and of the pages. No request changes anything. A page may load only from
 * this server: the responses forbid other sources and frames. A request with the name of another server as Host
 * is refused with 421. Above 24 connections of an address, or 64 of all, a new one takes the place of the one whose
 * request has taken longest. `m` is borrowed. Errors: ERR_INPUT (not an address of this machine, not a host name),
 * ERR_IO (the port is in use, the name service is down), ERR_NOMEM. */
int metrics_http_open(struct metrics *m, const struct metrics_http_opts *opts,
                      struct metrics_http **out, struct err *err);
/* Closes the connections whose request, or the response to it, has taken longer than 10 s. Called about once a second; any thread. NULL is
 * allowed. */
void metrics_http_expire(struct metrics_http *h);
uint16_t metrics_http_port(const struct metrics_http *h);
void metrics_http_close(struct metrics_http *h); /* NULL is allowed */

#endif
