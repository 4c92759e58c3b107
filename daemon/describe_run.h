/* describe_run.h - the description of a run in the event files of TensorBoard: the keys of the job that
 * determine the result as hyper-parameters, the curves by which runs are compared, and the graph. */
#ifndef DAEMON_DESCRIBE_RUN_H
#define DAEMON_DESCRIBE_RUN_H

struct err;
struct graph;
struct settled;
struct summary_run;

/* On success the caller owns *out and frees it with summary_run_free(). Errors: ERR_NOMEM. */
int describe_run(const struct settled *s, const struct graph *g, struct summary_run **out,
                 struct err *err);

#endif
