/* report_lines.c - the log lines of steps and evaluations: which task writes them.
 *
 * The coordinator of a group writes them. It may be killed at any moment, also after the group has
 * applied step k and before the line of step k is written. Every other task knows the content of
 * that line. The rule:
 *
 *     Each other task keeps its lines of the last step until it knows that the coordinator has
 *     written them. It writes them itself if the coordinator reports that it could not, or if the
 *     generation ends before the coordinator has reported either.
 *
 * A task keeps the lines of at most one step, however fast steps are: the coordinator reports step
 * k before it contributes to the sum of step k + 1, and a control word of that sum says whether
 * write(2) has taken the lines (train/train.h: "Log lines"). The rule therefore depends on no
 * heartbeat, and no task needs to know which task leads next:
 *   - A state after step k that survives a generation is held by a task that has reported step k.
 *     If that task did not lead, it has written the lines before its generation ended, hence before
 *     another task can receive the state.
 *   - The last step of a job, and of a generation that ends in order (SIGTERM, a joining task), is
 *     covered by the comparison that ends such a generation. Each line is then written once.
 *   - Other tasks write the lines that the stderr of the coordinator does not take (a stopped
 *     terminal, a full disk).
 *
 * After a generation that failed, the lines of its last step may be in several logs, with equal
 * step, epoch, loss, learning rate and gradient norm. Speeds and shares of time are those of the
 * task that writes. A line is missing only if no task that knows it has a log that takes bytes.
 * TensorBoard curves follow the coordinator alone: a second point of a step would be drawn.
 *
 * Alternatives that were rejected: a ring of records and "logged up to step k" in heartbeats needs
 * room for all steps between two heartbeats (200 steps of 1 ms each), and a new coordinator that
 * may hold none of the records; a coordinator that waits for stderr would stop training.
 *
 * Fault point (base/fault.h): report.line, on the coordinator, before each line; with `fail` the
 * coordinator behaves as if stderr had not taken the line.
 *
 * Threads: all events of a generation come from its first replica, and report_generation_end()
 * follows the last of them, so the kept lines need no lock. */
#include "daemon/report_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/text.h"

static bool write_step(enum log_level level, const struct step_line *s)
{
    bool has_idle = !isnan(s->device_idle);
    struct log_field fields[12] = {
        LOG_U64("step", s->step),
        LOG_U64("epoch", s->epoch),
        LOG_F32("loss", (float)s->loss),
        LOG_F64("learning_rate", s->learning_rate),
        LOG_F64("samples_per_second", s->samples_per_second),
        LOG_F64("gradient_norm", s->grad_norm),
        LOG_F64("data_share", s->share_data),
        LOG_F64("reduce_share", s->share_reduce),
        LOG_F64("reduce_work", s->reduce_work),
    };
    uint32_t n = 9; /* then the fields that not every task has */
    char idle[48] = "", speed[32];

    text_rate(speed, sizeof(speed), s->samples_per_second);
    if (has_idle) {
        fields[n++] = (struct log_field)LOG_F64("device_idle", s->device_idle);
        snprintf(idle, sizeof(idle), "; GPUs without work %.1f %%", 100 * s->device_idle);
    }
    if (s->loss_scale > 0)
        fields[n++] = (struct log_field)LOG_F64("loss_scale", s->loss_scale);
    if (s->groups > 0)
        fields[n++] = (struct log_field)LOG_U64("outer_step", s->outer_step);
    return log_record(level, "step", fields, n,
                      "step %llu of %llu, epoch %llu, loss %.6g, rate %.4g, %s samples/s "
                      "(data %.0f %%, compute %.0f %%, reduction %.0f %%%s)",
                      (unsigned long long)s->step, (unsigned long long)s->total_steps,
                      (unsigned long long)s->epoch, s->loss, s->learning_rate,
                      speed, 100 * s->share_data, 100 * s->share_compute,
                      100 * s->share_reduce, idle);
}

static bool write_eval(const struct report *r, enum log_level level,
                       const struct train_eval_report *e)
{
    const struct train_opts *t = r->opts.train;
    struct log_field fields[5 + TRAIN_MAX_METRICS] = {
        LOG_U64("step", e->step),
        LOG_U64("epoch", e->epoch),
        LOG_U64("samples", e->samples),
        LOG_F64("loss", e->loss),
        LOG_F64("seconds", (double)e->ns / 1e9),
    };
    char text[512];
    int at = snprintf(text, sizeof(text), "evaluation after step %llu: loss %.6g",
                      (unsigned long long)e->step, e->loss);

    for (uint32_t i = 0; i < t->n_metrics; i++) {
        fields[5 + i] = (struct log_field)LOG_F64(t->metrics[i].name, e->metrics[i]);
        at += snprintf(text + at, sizeof(text) - (size_t)at, ", %s %.6g", t->metrics[i].name,
                       e->metrics[i]);
    }
    return log_record(level, "eval", fields, 5 + t->n_metrics, "%s on %llu samples", text,
                      (unsigned long long)e->samples);
}

/* Either pointer may be NULL. false: stderr has not taken all of it. */
static bool write_lines(const struct report *r, enum log_level level, const struct step_line *step,
                        const struct train_eval_report *eval)
{
    bool is_written = step == NULL || write_step(level, step);

    return (eval == NULL || write_eval(r, level, eval)) && is_written;
}

static void unlogged(const struct report *r, uint64_t step)
{
    if (r->opts.on_unlogged != NULL)
        r->opts.on_unlogged(r->opts.arg, step);
}

/* Writes the kept lines, if there are any. If stderr does not take them and this task leads the
 * next generation, the other tasks receive that with the first step. */
static void write_kept(struct report *r)
{
    struct kept_lines *k = &r->kept;

    if ((k->has_step || k->has_eval) &&
        !write_lines(r, LOG_INFO, k->has_step ? &k->line : NULL, k->has_eval ? &k->eval : NULL))
        unlogged(r, k->step);
    k->has_step = k->has_eval = false;
}

/* One of the pointers is NULL. */
static void write_or_keep(struct report *r, uint64_t step, const struct step_line *line,
                          const struct train_eval_report *eval)
{
    struct kept_lines *k = &r->kept;

    if (report_is_coordinator(r)) {
        if (fault_hit("report.line") || !write_lines(r, LOG_INFO, line, eval))
            unlogged(r, step);
        return;
    }
    if (k->step != step)
        write_kept(r); /* step k + 1 was received from another task, without its control words */
    if (log_is_enabled(LOG_DEBUG) && write_lines(r, LOG_DEBUG, line, eval))
        return; /* this log has the line */
    k->step = step;
    if (line != NULL) {
        k->line = *line;
        k->has_step = true;
    } else {
        k->eval = *eval;
        k->has_eval = true;
    }
}

void lines_step(struct report *r, const struct step_line *line)
{
    write_or_keep(r, line->step, line, NULL);
}

void lines_eval(struct report *r, const struct train_eval_report *e)
{
    write_or_keep(r, e->step, NULL, e);
}

void lines_logged(struct report *r, uint64_t step, bool is_written)
{
    struct kept_lines *k = &r->kept;

    if (k->step != step || !is_written)
        write_kept(r);
    k->has_step = k->has_eval = false;
}

static void write_spare(struct spare_lines *l)
{
    if (l->used + l->compared > 0)
        log_info("spare",
                 "%s was late: this task computed lanes of it up to step %" PRIu64 ", %" PRIu64
                 " in its place, %" PRIu64 " to compare",
                 l->helped, l->step, l->used, l->compared);
    if (l->given > 0)
        log_info("spare",
                 "this task was late: %s computed %" PRIu64 " lanes of it up to step %" PRIu64,
                 l->helper, l->given, l->step);
    *l = (struct spare_lines){ .written_ms = clock_ms() };
}

static bool has_spare(const struct spare_lines *l)
{
    return l->used + l->compared + l->given > 0;
}

void lines_spare(struct report *r, const struct train_step_report *s)
{
    struct spare_lines *l = &r->spare;

    l->used += s->spare_used;
    l->compared += s->spare_compared;
    l->given += s->spare_given;
    if (s->spare_used + s->spare_compared + s->spare_given == 0)
        return;
    l->step = s->step;
    snprintf(l->helped, sizeof(l->helped), "%s", s->spare_helped);
    snprintf(l->helper, sizeof(l->helper), "%s", s->spare_helper);
    if (l->written_ms == 0 || clock_ms() - l->written_ms >= SPARE_LINE_MS)
        write_spare(l);
}

void report_generation_end(struct report *r)
{
    write_kept(r);
    if (has_spare(&r->spare)) /* the next generation may have other helpers */
        write_spare(&r->spare);
    report_at_rest(r);
}
