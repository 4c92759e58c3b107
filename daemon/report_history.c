/* report_history.c - the course of the run: curve, evaluations and checkpoints, for Status and the page. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "ckpt/ckpt.h"
#include "daemon/report_priv.h"
#include "proto/trainerd.pb-c.h"

void history_step(struct report *r, const struct train_step_report *s)
{
    curve_add(&r->curve, &(struct curve_step){ .step = s->step,
                                               .time_us = clock_wall_us(),
                                               .loss = s->loss,
                                               .learning_rate = s->learning_rate,
                                               .gradient_norm = s->grad_norm,
                                               .samples = s->samples,
                                               .ns = s->since_ns });
}

void history_eval(struct report *r, const struct train_eval_report *e)
{
    struct curve_evaluation at = { .step = e->step, .time_us = clock_wall_us(), .loss = e->loss };

    memcpy(at.metrics, e->metrics, sizeof(e->metrics));
    curve_add_evaluation(&r->curve, &at);
}

/* A checkpoint that is older than a verified one was removed, as checkpoint.max_to_keep says. */
static void mark_removed(struct report *r, uint64_t step)
{
    for (uint32_t i = 0; i < REPORT_CHECKPOINTS; i++)
        if (r->checkpoints[i].step == step && r->checkpoints[i].state != NULL &&
            strcmp(r->checkpoints[i].state, "verified") == 0)
            r->checkpoints[i].state = "removed";
}

/* The newest entry, if it is of the same step and did not succeed: a retry continues it. */
static struct kept_checkpoint *entry_of(struct report *r, uint64_t step)
{
    struct kept_checkpoint *last = &r->checkpoints[(r->n_checkpoints - 1) % REPORT_CHECKPOINTS];

    if (r->n_checkpoints > 0 && last->step == step && strcmp(last->state, "failed") == 0)
        return last;
    return &r->checkpoints[r->n_checkpoints++ % REPORT_CHECKPOINTS];
}

void history_checkpoint(struct report *r, const struct ckpt_event *e)
{
    static const char *const states[] = { [CKPT_WRITTEN] = "verified", [CKPT_FAILED] = "failed",
                                          [CKPT_DISCARDED] = "discarded" };
    struct kept_checkpoint *k;

    pthread_mutex_lock(&r->lock);
    if (e->kind == CKPT_REMOVED) {
        mark_removed(r, e->step);
    } else {
        k = entry_of(r, e->step);
        *k = (struct kept_checkpoint){ .step = e->step, .bytes = e->bytes, .ns = e->ns,
                                       .time_us = clock_wall_us(), .state = states[e->kind] };
        snprintf(k->path, sizeof(k->path), "%s", e->path != NULL ? e->path : "");
        snprintf(k->reason, sizeof(k->reason), "%s",
                 e->kind != CKPT_WRITTEN && e->text != NULL ? e->text : "");
    }
    pthread_mutex_unlock(&r->lock);
}

void report_print_curve(struct report *r, struct buf *out)
{
    const char *names[TRAIN_MAX_METRICS];
    uint32_t n = r->opts.train->n_metrics;

    for (uint32_t i = 0; i < n; i++)
        names[i] = r->opts.train->metrics[i].name;
    pthread_mutex_lock(&r->lock);
    curve_print(&r->curve, names, n, out);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Status ---- */

static void *make(struct arena *a, size_t n, size_t bytes)
{
    void *memory = arena_array(a, n, bytes);

    CHECK(memory != NULL);
    return memory;
}

/* A copy that is valid UTF-8, as protobuf needs it. */
static char *text(struct arena *a, const char *s)
{
    char *out = arena_strdup(a, s);

    CHECK(out != NULL);
    for (size_t i = 0, n = strlen(out), bytes; i<n; i += bytes> 0 ? bytes : 1) {
        bytes = text_utf8_char(out + i, n - i);
        if (bytes == 0)
            out[i] = '?';
    }
    return out;
}

static Trainerd__V1__Evaluation *evaluation(const struct report *r, struct arena *a)
{
    Trainerd__V1__Evaluation *e = make(a, 1, sizeof(*e));
    const struct train_opts *t = r->opts.train;

    trainerd__v1__evaluation__init(e);
    e->step = r->eval.step;
    e->loss = r->eval.loss;
    e->n_metrics = t->n_metrics;
    e->metrics = make(a, t->n_metrics + 1, sizeof(*e->metrics));
    for (uint32_t i = 0; i < t->n_metrics; i++) {
        Trainerd__V1__Measure *m = make(a, 1, sizeof(*m));

        trainerd__v1__measure__init(m);
        m->name = text(a, t->metrics[i].name);
        m->value = r->eval.metrics[i];
        e->metrics[i] = m;
    }
    return e;
}

static Trainerd__V1__CheckpointStatus *checkpoint(const struct kept_checkpoint *k, struct arena *a)
{
    Trainerd__V1__CheckpointStatus *c = make(a, 1, sizeof(*c));

    trainerd__v1__checkpoint_status__init(c);
    c->step = k->step;
    c->path = text(a, k->path);
    c->state = (char *)k->state;
    c->bytes = k->bytes;
    c->seconds = (double)k->ns / 1e9;
    c->time_us = k->time_us;
    c->reason = text(a, k->reason);
    return c;
}

void report_describe(struct report *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    uint64_t from;

    pthread_mutex_lock(&r->lock);
    s->lanes = r->opts.train->lanes;
    s->global_batch = r->opts.train->global_batch;
    if (r->has_eval)
        s->evaluation = evaluation(r, a);
    from = r->n_checkpoints > REPORT_CHECKPOINTS ? r->n_checkpoints - REPORT_CHECKPOINTS : 0;
    s->checkpoints = make(a, REPORT_CHECKPOINTS, sizeof(*s->checkpoints));
    for (uint64_t i = from; i < r->n_checkpoints; i++)
        s->checkpoints[s->n_checkpoints++] = checkpoint(&r->checkpoints[i % REPORT_CHECKPOINTS], a);
    pthread_mutex_unlock(&r->lock);
}
