/* wire_window.c - the parts of a heartbeat that window.h describes: validates, reads and writes them.
 * The values are shown and compared, never used as sizes, so that an invalid value is an error of the
 * sender. */
#include "rdzv/wire.h"

#include <float.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

/* ---- validation ---- */

/* A double of a message: its offset and range. */
struct range {
    const char *name;
    size_t at;
    double min, max;
};
#define AT(type_, field_) offsetof(Trainerd__V1__##type_, field_)

static int check_ranges(const void *message, const struct range *ranges, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        double v = *(const double *)(const void *)((const char *)message + ranges[i].at);

        if (!(v >= ranges[i].min && v <= ranges[i].max))
            return err_set(err, ERR_INPUT, "%s: %g, expected a finite number from %g to %g",
                           ranges[i].name, v, ranges[i].min, ranges[i].max);
    }
    return 0;
}

static int check_wait(const struct wire_cluster *c, const Trainerd__V1__TaskWait *m,
                      struct err *err)
{
    static const struct range ranges[] = { { "late", AT(TaskWait, late), 0, DBL_MAX },
                                           { "slow", AT(TaskWait, slow), 0, DBL_MAX },
                                           { "rate", AT(TaskWait, rate), 0, DBL_MAX },
                                           { "losses", AT(TaskWait, losses), 0, DBL_MAX } };

    if (m->task == NULL || wire_rank(c, m->task) == MEMBER_NO_RANK)
        return err_set(err, ERR_INPUT, "task: expected a task of this cluster");
    return check_ranges(m, ranges, COUNT_OF(ranges), err);
}

static int check_window(const struct wire_cluster *c, const Trainerd__V1__Window *m,
                        struct err *err)
{
    static const struct range ranges[] = {
        { "seconds", AT(Window, seconds), 0, DBL_MAX },
        { "data", AT(Window, data), 0, 1 },
        { "reduce", AT(Window, reduce), 0, 1 },
        { "checkpoint", AT(Window, checkpoint), 0, 1 },
        { "lane_seconds", AT(Window, lane_seconds), 0, DBL_MAX },
        { "steal", AT(Window, steal), 0, 1 },
        { "others", AT(Window, others), 0, 1 },
        { "storage", AT(Window, storage), 0, 1 },
        { "idle", AT(Window, idle), -1, 1 },
        { "copy_ms", AT(Window, copy_ms), -1, DBL_MAX },
        { "late", AT(Window, late), 0, DBL_MAX },
        { "slow", AT(Window, slow), 0, DBL_MAX },
        { "delay", AT(Window, delay), 0, DBL_MAX },
    };
    int rc;

    if (m->number == 0 || m->number > WIRE_NUMBER_MAX || m->generation > WIRE_NUMBER_MAX ||
        m->steps == 0)
        return err_set(err, ERR_INPUT,
                       "number %llu, generation %llu, steps %llu: expected numbers from 1 to 2^62",
                       (unsigned long long)m->number, (unsigned long long)m->generation,
                       (unsigned long long)m->steps);
    if (m->n_waits > RDZV_WAITS_MAX)
        return err_set(err, ERR_INPUT, "%zu waits, expected at most %d", m->n_waits,
                       RDZV_WAITS_MAX);
    rc = check_ranges(m, ranges, COUNT_OF(ranges), err);
    for (size_t i = 0; rc == 0 && i < m->n_waits; i++) {
        rc = check_wait(c, m->waits[i], err);
        if (rc < 0)
            return err_wrap(err, rc, "wait %zu", i);
    }
    return rc;
}

static int check_advice(const Trainerd__V1__Advice *m, struct err *err)
{
    static const struct range ranges[] = { { "value", AT(Advice, value), 0, DBL_MAX },
                                           { "limit", AT(Advice, limit), 0, DBL_MAX } };
    const struct {
        const char *name, *text;
        size_t max;
    } texts[] = { { "kind", m->kind, RDZV_KIND_BYTES - 1 },
                  { "culprit", m->culprit, RDZV_CULPRIT_BYTES - 1 },
                  { "text", m->text, RDZV_SENTENCE_BYTES - 1 },
                  { "remedy", m->remedy, RDZV_SENTENCE_BYTES - 1 } };
    int rc = check_ranges(m, ranges, COUNT_OF(ranges), err);

    for (size_t i = 0; rc == 0 && i < COUNT_OF(texts); i++)
        rc = wire_check_string(texts[i].name, texts[i].text, texts[i].max, err);
    return rc;
}

int wire_check_beat_window(const struct wire_cluster *c, const Trainerd__V1__Beat *m,
                           struct err *err)
{
    int rc = m->window != NULL ? check_window(c, m->window, err) : 0;

    if (rc < 0)
        return err_wrap(err, rc, "window");
    if (m->n_advice > RDZV_ADVICE_MAX)
        return err_set(err, ERR_INPUT, "advice: %zu sentences, expected at most %d", m->n_advice,
                       RDZV_ADVICE_MAX);
    for (size_t i = 0; i < m->n_advice; i++) {
        rc = check_advice(m->advice[i], err);
        if (rc < 0)
            return err_wrap(err, rc, "advice %zu", i);
    }
    return 0;
}

/* ---- in ---- */

void wire_read_window(const struct wire_cluster *c, const Trainerd__V1__Window *m,
                      struct rdzv_window *out)
{
    *out = (struct rdzv_window){
        .number = m->number,
        .generation = m->generation,
        .steps = m->steps,
        .seconds = m->seconds,
        .data = m->data,
        .reduce = m->reduce,
        .checkpoint = m->checkpoint,
        .lanes = m->lanes,
        .lane_seconds = m->lane_seconds,
        .steal = m->steal,
        .delay = m->delay,
        .others = m->others,
        .storage = m->storage,
        .idle = m->idle,
        .copy_ms = m->copy_ms,
        .late = m->late,
        .slow = m->slow,
        .n_waits = (uint32_t)m->n_waits,
    };
    for (uint32_t i = 0; i < out->n_waits; i++)
        out->waits[i] = (struct rdzv_wait){ wire_rank(c, m->waits[i]->task), m->waits[i]->late,
                                            m->waits[i]->slow, m->waits[i]->rate,
                                            m->waits[i]->losses };
}

static void copy_text(char *out, size_t n_out, const char *text)
{
    wire_text(out, n_out, text, strlen(text));
}

void wire_read_advice(const Trainerd__V1__Advice *m, struct rdzv_advice *out)
{
    *out = (struct rdzv_advice){ .time_us = m->time_us, .value = m->value, .limit = m->limit };
    copy_text(out->kind, sizeof(out->kind), m->kind);
    copy_text(out->culprit, sizeof(out->culprit), m->culprit);
    copy_text(out->text, sizeof(out->text), m->text);
    copy_text(out->remedy, sizeof(out->remedy), m->remedy);
}

/* ---- out ---- */

static void *make(struct arena *a, size_t n, size_t bytes)
{
    void *memory = arena_array(a, n, bytes);

    CHECK(memory != NULL);
    return memory;
}

Trainerd__V1__Window *wire_write_window(struct arena *a, const struct wire_cluster *c,
                                        const struct rdzv_window *window)
{
    Trainerd__V1__Window *m = make(a, 1, sizeof(*m));

    trainerd__v1__window__init(m);
    m->number = window->number;
    m->generation = window->generation;
    m->steps = window->steps;
    m->seconds = window->seconds;
    m->data = window->data;
    m->reduce = window->reduce;
    m->checkpoint = window->checkpoint;
    m->lanes = window->lanes;
    m->lane_seconds = window->lane_seconds;
    m->steal = window->steal;
    m->delay = window->delay;
    m->others = window->others;
    m->storage = window->storage;
    m->idle = window->idle;
    m->copy_ms = window->copy_ms;
    m->late = window->late;
    m->slow = window->slow;
    m->n_waits = window->n_waits;
    m->waits = make(a, window->n_waits + 1, sizeof(*m->waits));
    for (uint32_t i = 0; i < window->n_waits; i++) {
        Trainerd__V1__TaskWait *wait = make(a, 1, sizeof(*wait));

        trainerd__v1__task_wait__init(wait);
        wait->task = make(a, 1, sizeof(*wait->task));
        wire_fill_task(c, window->waits[i].rank, wait->task);
        wait->late = window->waits[i].late;
        wait->slow = window->waits[i].slow;
        wait->rate = window->waits[i].rate;
        wait->losses = window->waits[i].losses;
        m->waits[i] = wait;
    }
    return m;
}

Trainerd__V1__Advice **wire_write_advice(struct arena *a, const struct rdzv_advice *advice,
                                         uint32_t n)
{
    Trainerd__V1__Advice **out = make(a, n + 1, sizeof(Trainerd__V1__Advice *));

    for (uint32_t i = 0; i < n; i++) {
        Trainerd__V1__Advice *m = make(a, 1, sizeof(*m));

        trainerd__v1__advice__init(m);
        m->kind = (char *)advice[i].kind;
        m->value = advice[i].value;
        m->limit = advice[i].limit;
        m->culprit = (char *)advice[i].culprit;
        m->text = (char *)advice[i].text;
        m->remedy = (char *)advice[i].remedy;
        m->time_us = advice[i].time_us;
        out[i] = m;
    }
    return out;
}
