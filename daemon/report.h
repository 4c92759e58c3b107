/* report.h - what training says, for people and programs: log, progress line, metrics, TensorBoard curves,
 * and the figures that heartbeats and Status carry.
 *
 * report_event() is called from replica, data, checkpoint and trace threads; it allocates nothing (but
 * for the one profile) and never blocks on a disk but the log's. The rest belongs to the loop but
 * report_end_summary(). */
#ifndef DAEMON_REPORT_H
#define DAEMON_REPORT_H

#include <stdbool.h>
#include <stdint.h>

struct Trainerd__V1__StatusReply;
struct arena;
struct buf;
struct err;
struct metrics;
struct rdzv_progress;
struct report;
struct summary;
struct summary_run;
struct train_event;
struct train_opts;

struct report_opts {
    const struct train_opts *train; /* borrowed */
    struct metrics *metrics;        /* borrowed */
    const char *job, *task, *version;
    const char *summary_directory;  /* NULL: no curves */
    bool takes_no_steps;            /* an evaluator or a ps task: it serves no trainerd_steps_total */
    uint32_t log_every_steps;
    /* NULL, or called by report_event() and report_generation_end() if stderr has not taken a line
     * about `step`. */
    void (*on_unlogged)(void *arg, uint64_t step);
    void *arg;
};

int report_open(const struct report_opts *opts, struct report **out, struct err *err);
void report_close(struct report *r); /* flushes the curves; NULL is fine */

void report_event(struct report *r, const struct train_event *e);
/* Called by the last thread of a generation, before the group learns that the generation has ended:
 * writes the log lines of the last step which the coordinator may not have written, and what no line
 * about spare lanes has counted yet. */
void report_generation_end(struct report *r);
/* Total steps are known once training is opened. */
void report_set_total(struct report *r, uint64_t total_steps, uint64_t steps_per_epoch);
/* The description of the run for the curves, which is written once. Takes ownership. Before the first
 * generation. */
void report_set_run(struct report *r, struct summary_run *run);
/* Sets whether this task coordinates the group (initially not): the coordinator writes curves, and
 * the log lines of steps and evaluations; other tasks write these lines at level debug, and where
 * the coordinator does not (report_lines.c). Called while no generation runs; any thread. */
void report_set_coordinator(struct report *r, bool leads);
/* Where this task is outside training: "joining", "waiting". */
void report_phase(struct report *r, const char *phase);
void report_trouble(struct report *r, const char *text);
/* Counts a message that reached this task with other bytes than were sent. Any thread. */
void report_changed_message(struct report *r);

/* What may change while training runs. */
void report_set_log_every(struct report *r, uint32_t steps);
/* Curves go on with the next point in `fresh`, which is open in `directory` (copied); both NULL: no more curves.
 * *old: those until now, for the caller to end off the loop; NULL: none. false: nothing is done, because this
 * task draws, and needs `fresh` for that directory. Where it does not draw yet, the directory is where it will. */
bool report_set_summary(struct report *r, const char *directory, struct summary *fresh,
                        struct summary **old);
void report_end_summary(struct summary *s); /* writes the last points, for at most 10 s; NULL is fine */

void report_progress(struct report *r, struct rdzv_progress *out);
void report_draw(struct report *r);                    /* the progress line, if a terminal wants one */
/* Adds what Status says of the job and of the run: lanes, batch, the last evaluation and the last
 * checkpoints. Memory comes from `a`. Any thread. */
void report_describe(struct report *r, struct Trainerd__V1__StatusReply *s, struct arena *a);
/* Appends the course of the run as JSON (daemon/curve.h). Any thread. */
void report_print_curve(struct report *r, struct buf *out);

#endif
