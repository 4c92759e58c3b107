/* meter.c - memory and time of `ops speed`, on a CPU or a GPU. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "ops/speed.h"

enum { ROUNDS = 5, WARM_ROUNDS = 1, ROUND_MS = 20 };
#define PATTERN_BYTES ((size_t)1 << 20)

/* ---- patterns: for each fill PATTERN_BYTES, then the same for bfloat16 ---- */

static float draw(uint32_t *x)
{
    *x = 1664525 * *x + 1013904223;
    return (float)(*x >> 8) / (1 << 24);
}

static char *pattern_at(const struct meter *m, enum speed_fill fill, bool is_half)
{
    return (char *)m->patterns.base + ((size_t)fill + (is_half ? SPEED_FILLS : 0)) * PATTERN_BYTES;
}

static void make_patterns(const struct meter *m)
{
    float *uniform = (float *)pattern_at(m, SPEED_UNIFORM, false);
    float *positive = (float *)pattern_at(m, SPEED_POSITIVE, false);
    int64_t *labels = (int64_t *)pattern_at(m, SPEED_LABELS, false);
    char *mask = pattern_at(m, SPEED_MASK, false);
    uint32_t x = 7;

    for (size_t i = 0; i < PATTERN_BYTES / sizeof(float); i++) {
        uniform[i] = 2 * draw(&x) - 1;
        positive[i] = 0.5f + draw(&x);
    }
    for (size_t i = 0; i < PATTERN_BYTES / sizeof(int64_t); i++)
        labels[i] = (int64_t)(1000 * draw(&x));
    for (size_t i = 0; i < PATTERN_BYTES; i++)
        mask[i] = draw(&x) < 0.5f;
    for (int f = SPEED_UNIFORM; f <= SPEED_POSITIVE; f++) { /* bfloat16: the upper half of a float */
        char *half = pattern_at(m, (enum speed_fill)f, true);
        const char *floats = pattern_at(m, (enum speed_fill)f, false);

        for (size_t i = 0; i < PATTERN_BYTES / 2; i++)
            memcpy(half + 2 * i, floats + 4 * (i % (PATTERN_BYTES / 4)) + 2, 2);
    }
}

/* ---- memory ---- */

int meter_open(struct meter *m, const struct cuda_api *cuda, bool quick, struct err *err)
{
    int rc;

    *m = (struct meter){ .cuda = cuda,
                         .size = quick ? SPEED_QUICK : cuda != NULL ? SPEED_GPU : SPEED_CPU };
    rc = device_mem_open(&m->patterns, 2 * SPEED_FILLS * PATTERN_BYTES, false, err);
    if (rc < 0)
        return rc;
    make_patterns(m);
    if (cuda == NULL) {
        op_thread_init();
        return 0;
    }
    rc = cuda->stream_open(CUDA_HIGH_PRIORITY, &m->stream, err);
    if (rc == 0)
        rc = cuda->event_open(true, &m->from, err);
    return rc < 0 ? rc : cuda->event_open(true, &m->to, err);
}

void meter_close(struct meter *m)
{
    if (m->from != NULL)
        m->cuda->event_close(m->from);
    if (m->to != NULL)
        m->cuda->event_close(m->to);
    if (m->stream != NULL)
        m->cuda->stream_close(m->stream);
    device_mem_close(&m->patterns);
}

int meter_alloc(const struct meter *m, struct device_mem *out, size_t bytes, struct err *err)
{
    if (m->cuda == NULL)
        return device_mem_open(out, bytes, false, err);
    *out = (struct device_mem){ .bytes = bytes, .fd = -1 };
    return m->cuda->alloc(&out->base, bytes, err);
}

void meter_free(const struct meter *m, struct device_mem *mem)
{
    if (m->cuda == NULL) {
        device_mem_close(mem);
        return;
    }
    m->cuda->free(mem->base);
    mem->base = NULL;
}

int meter_wait(const struct meter *m, struct err *err)
{
    return m->cuda != NULL ? device_wait(m->cuda, m->stream, NULL, NULL, err) : 0;
}

int meter_copy(const struct meter *m, void *to, const void *from, size_t bytes, struct err *err)
{
    if (m->cuda != NULL)
        return m->cuda->copy(to, from, bytes, m->stream, err);
    memcpy(to, from, bytes);
    return 0;
}

int meter_fill(const struct meter *m, void *to, enum speed_fill fill, enum tensor_dtype type,
               size_t bytes, struct err *err)
{
    const char *from = pattern_at(m, fill, type == TENSOR_BF16);
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < bytes; at += PATTERN_BYTES)
        rc = meter_copy(m, (char *)to + at, from,
                        bytes - at < PATTERN_BYTES ? bytes - at : PATTERN_BYTES, err);
    return rc;
}

/* ---- time ---- */

/* Sets *graph to the captured work; NULL on a CPU. */
static int capture(const struct meter *m, meter_work *work, void *arg, struct cuda_graph **graph,
                   struct err *err)
{
    int rc, ended;

    *graph = NULL;
    if (m->cuda == NULL)
        return 0;
    rc = m->cuda->capture_begin(m->stream, err);
    if (rc < 0)
        return rc;
    rc = work(arg, err);
    ended = m->cuda->capture_end(m->stream, graph, err);
    return rc < 0 ? rc : ended;
}

/* Sets *ms to the milliseconds of one repetition. */
static int run_round(const struct meter *m, meter_work *work, void *arg, struct cuda_graph *graph,
                     uint32_t repeats, double *ms, struct err *err)
{
    uint64_t begin = clock_ns();
    int rc = m->cuda != NULL ? m->cuda->record(m->from, m->stream, err) : 0;

    for (uint32_t i = 0; rc == 0 && i < repeats; i++)
        rc = graph != NULL ? m->cuda->launch(graph, m->stream, err) : work(arg, err);
    if (rc == 0 && m->cuda != NULL)
        rc = m->cuda->record(m->to, m->stream, err);
    if (rc == 0)
        rc = meter_wait(m, err);
    if (rc < 0)
        return rc;
    *ms = (m->cuda != NULL ? m->cuda->elapsed_ms(m->from, m->to)
                           : (double)(clock_ns() - begin) / 1e6) /
          repeats;
    return 0;
}

int meter_time(const struct meter *m, meter_work *work, void *arg, double *us, struct err *err)
{
    bool is_quick = m->size == SPEED_QUICK;
    int n_rounds = is_quick ? 1 : ROUNDS;
    double ms = 0, best = INFINITY;
    struct cuda_graph *graph;
    uint32_t repeats = 1;
    int rc = work(arg, err); /* once without capture: loads kernels that are loaded lazily */

    if (rc == 0)
        rc = meter_wait(m, err);
    if (rc < 0)
        return rc;
    rc = capture(m, work, arg, &graph, err);
    for (int round = is_quick ? 0 : -WARM_ROUNDS; rc == 0 && round < n_rounds; round++) {
        rc = run_round(m, work, arg, graph, repeats, &ms, err);
        if (round < 0 && rc == 0)
            repeats = ms > ROUND_MS ? 1 : ms > ROUND_MS / 1e3 ? (uint32_t)(ROUND_MS / ms) : 1000;
        if (round >= 0 && ms < best)
            best = ms;
    }
    if (m->cuda != NULL)
        m->cuda->graph_close(graph);
    if (rc < 0)
        return rc;
    *us = best * 1e3;
    return 0;
}

/* ---- copies ---- */

struct copies {
    const struct meter *m;
    struct device_mem to, from;
    size_t bytes; /* of one copy */
    uint32_t n;
};

static int run_copies(void *arg, struct err *err)
{
    struct copies *c = arg;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n; i++)
        rc = meter_copy(c->m, (char *)c->to.base + i * c->bytes,
                        (char *)c->from.base + i * c->bytes, c->bytes, err);
    return rc;
}

int meter_time_copies(const struct meter *m, size_t bytes, uint32_t n, double *us, struct err *err)
{
    struct copies c = { .m = m, .bytes = (bytes / 2 + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN,
                        .n = n, .to.fd = -1, .from.fd = -1 };
    int rc = meter_alloc(m, &c.to, n * c.bytes, err);

    if (rc == 0)
        rc = meter_alloc(m, &c.from, n * c.bytes, err);
    if (rc == 0)
        rc = meter_fill(m, c.from.base, SPEED_UNIFORM, TENSOR_F32, n * c.bytes, err);
    if (rc == 0)
        rc = meter_time(m, run_copies, &c, us, err);
    meter_free(m, &c.to);
    meter_free(m, &c.from);
    return rc;
}
