#include "daemon/sensors.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "daemon/settle.h"
#include "device/cuda.h"
#include "device/device.h"
#include "metrics/metrics.h"
#include "rdzv/rdzv.h"

enum { EVERY_SECONDS = 2 };

struct sensors {
    const struct cuda_api *cuda;
    struct metrics *metrics;
    uint32_t n;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t stop;
    bool is_stopping;
    struct metric *idle[DEVICE_MAX]; /* NULL: no value yet */
    struct rdzv_gpu gpus[]; /* [n] */
};

/* The metrics: offset of the value in struct rdzv_gpu, and the factor that converts the value to
 * the unit in the metric's name. */
static const struct row {
    size_t at;
    double scale;
    const char *name, *help;
} rows[] = {
#define ROW(field_, scale_, name_, help_) { offsetof(struct rdzv_gpu, field_), scale_, name_, help_ }
    ROW(utilisation, 1, "trainerd_gpu_utilization_ratio", "Share of the last second in which a kernel ran, 0 to 1."),
    ROW(memory_used, 1, "trainerd_gpu_memory_used_bytes", "Memory of the GPU that is used, by all processes."),
    ROW(memory_total, 1, "trainerd_gpu_memory_total_bytes", "Memory of the GPU."),
    ROW(celsius, 1, "trainerd_gpu_temperature_celsius", "Temperature of the GPU."),
    ROW(watts, 1, "trainerd_gpu_power_watts", "Power that the GPU draws."),
    ROW(ecc_errors, 1, "trainerd_gpu_ecc_uncorrected_errors",
        "Uncorrected ECC errors since the driver was loaded."),
    ROW(clock_mhz, 1e6, "trainerd_gpu_sm_clock_hertz", "Clock of the multiprocessors."),
#undef ROW
};

static void labels_of(const struct rdzv_gpu *g, struct buf *out)
{
    char index[16];

    snprintf(index, sizeof(index), "%u", g->index);
    metrics_label(out, "gpu", index);
    metrics_label(out, "name", g->name);
    metrics_label(out, "uuid", g->uuid);
}

/* Updates the metrics of a GPU. A reading that the GPU does not report has no metric. */
static void update_metrics(struct metrics *m, const struct rdzv_gpu *g)
{
    struct buf labels = { 0 };

    labels_of(g, &labels);
    CHECK(!labels.failed);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double v = *(const double *)(const void *)((const char *)g + rows[i].at);

        if (v >= 0)
            metric_set(metrics_gauge(m, rows[i].name, labels.data, rows[i].help),
                       v * rows[i].scale);
    }
    metric_set(
        metrics_gauge(
            m, "trainerd_gpu_throttled", labels.data,
            "1 while power, temperature or hardware limits the clock (Status names the limit)."),
        g->throttled[0] != '\0');
    buf_fini(&labels);
}

static void store_reading(struct rdzv_gpu *g, const struct cuda_reading *r)
{
    g->utilisation = r->utilisation;
    g->memory_used = r->memory_used;
    g->memory_total = r->memory_total;
    g->celsius = r->celsius;
    g->watts = r->watts;
    g->ecc_errors = r->ecc_errors;
    g->clock_mhz = r->clock_mhz;
    snprintf(g->throttled, sizeof(g->throttled), "%s", r->throttled);
}

/* Logs new ECC errors and the start of throttling, once for each occurrence. */
static void log_change(const struct rdzv_gpu *was, const struct rdzv_gpu *is)
{
    if (strcmp(was->throttled, is->throttled) != 0 && is->throttled[0] != '\0')
        log_warn("gpu", "cuda:%u is throttled (%s): %.0f MHz, %.0f C, %.0f W", is->index,
                 is->throttled, is->clock_mhz, is->celsius, is->watts);
    if (was->ecc_errors >= 0 && is->ecc_errors > was->ecc_errors)
        log_warn("gpu", "cuda:%u has %.0f uncorrected ECC errors since its driver was loaded, %.0f of them new; "
                        "check this GPU", is->index, is->ecc_errors, is->ecc_errors - was->ecc_errors);
}

static bool read_all(struct sensors *x, bool was_logged)
{
    bool failed = false;

    for (uint32_t i = 0; i < x->n; i++) {
        struct cuda_reading r;
        struct rdzv_gpu was, is;
        struct err err;

        if (x->cuda->read(x->gpus[i].index, &r, &err) < 0) {
            if (!was_logged && !failed)
                log_warn("gpu", "no readings of GPUs: %s", err.text);
            failed = true;
            continue;
        }
        pthread_mutex_lock(&x->lock);
        was = x->gpus[i];
        store_reading(&x->gpus[i], &r);
        is = x->gpus[i];
        pthread_mutex_unlock(&x->lock);
        log_change(&was, &is);
        update_metrics(x->metrics, &is);
    }
    return failed;
}

static void *sensors_main(void *arg)
{
    struct sensors *x = arg;
    bool was_logged = false, stops = false;

    while (!stops) {
        struct timespec until;

        was_logged = read_all(x, was_logged) || was_logged;
        until = clock_after_ms(EVERY_SECONDS * 1000);
        pthread_mutex_lock(&x->lock);
        while (!x->is_stopping && pthread_cond_timedwait(&x->stop, &x->lock, &until) != ETIMEDOUT)
            ;
        stops = x->is_stopping;
        pthread_mutex_unlock(&x->lock);
    }
    return NULL;
}

int sensors_open(const struct settled *s, struct metrics *m, struct sensors **out, struct err *err)
{
    struct sensors *x;
    pthread_condattr_t attr;
    int rc;

    *out = NULL;
    if (s->gpus == NULL)
        return 0;
    x = calloc(1, sizeof(*x) + s->n_devices * sizeof(x->gpus[0]));
    if (x == NULL)
        return err_set(err, ERR_NOMEM, "sensors of %u GPUs: out of memory", s->n_devices);
    x->cuda = device_cuda(&s->devices[0]);
    x->metrics = m;
    x->n = s->n_devices;
    for (uint32_t i = 0; i < x->n; i++) {
        struct rdzv_gpu *g = &x->gpus[i];

        g->index = s->devices[i].index;
        snprintf(g->name, sizeof(g->name), "%s", s->gpus[i].name);
        snprintf(g->uuid, sizeof(g->uuid), "%s", s->gpus[i].uuid);
        g->idle = -1;
        store_reading(g, &(struct cuda_reading){ -1, -1, -1, -1, -1, -1, -1, "" });
    }
    pthread_mutex_init(&x->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&x->stop, &attr);
    pthread_condattr_destroy(&attr);
    rc = thread_start(&x->thread, "reads the sensors of GPUs", sensors_main, x, err);
    if (rc < 0) {
        pthread_cond_destroy(&x->stop);
        pthread_mutex_destroy(&x->lock);
        free(x);
        return rc;
    }
    *out = x;
    return 0;
}

void sensors_close(struct sensors *x)
{
    if (x == NULL)
        return;
    pthread_mutex_lock(&x->lock);
    x->is_stopping = true;
    pthread_cond_signal(&x->stop);
    pthread_mutex_unlock(&x->lock);
    pthread_join(x->thread, NULL);
    pthread_cond_destroy(&x->stop);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

static struct metric *idle_metric(struct metrics *m, const struct rdzv_gpu *g)
{
    struct buf labels = { 0 };
    struct metric *out;

    labels_of(g, &labels);
    CHECK(!labels.failed);
    out =
        metrics_gauge(m, "trainerd_device_idle_ratio", labels.data,
                      "Share of the last step in which the GPU had no work of this task, 0 to 1.");
    buf_fini(&labels);
    return out;
}

void sensors_idle(struct sensors *x, const double *idle)
{
    if (x == NULL)
        return;
    pthread_mutex_lock(&x->lock);
    for (uint32_t i = 0; i < x->n; i++) {
        if (isnan(idle[i]))
            continue;
        x->gpus[i].idle = idle[i];
        if (x->idle[i] == NULL)
            x->idle[i] = idle_metric(x->metrics, &x->gpus[i]);
        metric_set(x->idle[i], idle[i]);
    }
    pthread_mutex_unlock(&x->lock);
}

uint32_t sensors_read(struct sensors *x, struct rdzv_gpu *out, uint32_t max)
{
    if (x == NULL)
        return 0;
    pthread_mutex_lock(&x->lock);
    memcpy(out, x->gpus, (x->n < max ? x->n : max) * sizeof(*out));
    pthread_mutex_unlock(&x->lock);
    return x->n;
}
