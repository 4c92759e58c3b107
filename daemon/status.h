/* status.h - the status of a task and its group: one document for Control.Status, the status page,
 * /api/v1/status and the metrics of the group. All functions run on the loop's thread unless a line
 * says otherwise. */
#ifndef DAEMON_STATUS_H
#define DAEMON_STATUS_H

#include <stddef.h>

struct Trainerd__V1__StatusReply;
struct arena;
struct group_view;
struct err;
struct metrics;
struct run;
struct status_metrics;
struct status_pages;

/* ---- status.c ---- */

/* Adds what only the daemon knows: lanes, evaluation, checkpoints. */
void status_complete(struct run *r, struct Trainerd__V1__StatusReply *s,
                     const struct group_view *view, struct arena *a);
/* What rdzv_describe() fills in, for a task without a group (alone, or an evaluator), whose only task is
 * itself; calls status_complete(). */
void status_describe_alone(struct run *r, struct Trainerd__V1__StatusReply *s, struct arena *a);

/* ---- status_pages.c: the page and its data over HTTP ---- */

/* Opens r->http.server at `listen` with these pages; `hosts`: names that a request may use beside those of the cluster,
 * separated by commas; NULL: none. Sets r->http.pages and r->http.page. Errors: those of metrics_http_open(). */
int status_pages_open(struct run *r, const char *listen, const char *hosts, struct err *err);
/* Called often; updates the metrics of the group once a second, and after each view, so that no
 * process of a task is missed. */
void status_pages_tick(struct run *r);
void status_pages_view(struct run *r); /* a generation begins */
/* Makes the last document, with the exit code of the run as its phase and the exit text: a page that is open shows how
 * the task ended. Called after the loop has stopped, before the mode of the run is closed. */
void status_pages_final(struct run *r);
/* No document is made any more. Called before the mode of the run is closed. NULL is allowed. */
void status_pages_end(struct status_pages *p);
/* Waits until a page that is open has had the time to read the last document. NULL is allowed. */
void status_pages_linger(struct status_pages *p);
/* After metrics_http_close() and loop_close(). NULL is allowed. */
void status_pages_free(struct status_pages *p);

/* ---- status_metrics.c ---- */

/* Metrics of the membership. `m` is borrowed. Never returns NULL (CHECK). */
struct status_metrics *status_metrics_new(struct metrics *m);
void status_metrics_update(struct status_metrics *x, const struct Trainerd__V1__StatusReply *s);
void status_metrics_free(struct status_metrics *x);

#endif
