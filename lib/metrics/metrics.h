/* metrics.h - counters, gauges and histograms, read as Prometheus text.
 *
 * Register at start, update from any thread (one atomic, no lock, no allocation), read from any
 * thread. Text exposition format 0.0.4. Names start with trainerd_, units last (_seconds, _bytes,
 * _total). */
#ifndef METRICS_METRICS_H
#define METRICS_METRICS_H

#include <stdint.h>

struct buf;
struct err;
struct metric;
struct metrics;

struct metrics *metrics_new(void); /* NULL: out of memory */
void metrics_free(struct metrics *m);

/* Adds `name="value"` to a label text, escaped, after a comma where it is not the first. */
void metrics_label(struct buf *labels, const char *name, const char *value);

/* `labels` as they stand in the text: `task="worker 1",job="x"` (metrics_label builds it), or NULL;
 * copied, as name and help are. The same name may be registered with several labels; help and type
 * must agree (CHECK). Name and labels a second time: the metric that is there already.
 * Never NULL: out of memory at start ends the process (CHECK). Belongs to `m`. Any thread. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help);
/* Upper bounds ascending, without +Inf; at most 32. */
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                 const char *help, const double *bounds, uint32_t n_bounds);

void metric_add(struct metric *c, double v);     /* counter, v >= 0; gauge */
void metric_set(struct metric *g, double v);     /* gauge */
void metric_observe(struct metric *h, double v); /* histogram */

void metrics_print(struct metrics *m, struct buf *out);

/* ---- over HTTP (libmicrohttpd, a thread of its own) ---- */
struct metrics_http;
/* Serves GET and HEAD of /metrics, and of / and /status with what `status` prints (JSON, may be
 * NULL; called on the HTTP thread). `listen` "host:port", "[v6]:port"; port 0: the system picks
 * (metrics_http_port). Errors: ERR_INPUT (not an address of this machine), ERR_IO (the port is
 * taken, name service down), ERR_NOMEM. */
int metrics_http_open(struct metrics *m, const char *listen,
                      void (*status)(void *arg, struct buf *out), void *arg,
                      struct metrics_http **out, struct err *err);
uint16_t metrics_http_port(const struct metrics_http *h);
void metrics_http_close(struct metrics_http *h); /* NULL is fine */

#endif
