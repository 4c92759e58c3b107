/* speed_optim.c - optimizers in `ops speed`: one update of all weights of a GPT-2. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "ops/speed.h"
#include "optim/named.h"
#include "optim/optim.h"

enum { LAYERS = 12, PER_LAYER = 12, MAX_PARAMS = 2 + LAYERS * PER_LAYER + 2 };

const char *const speed_optimizers[] = { "adamw", "momentum", NULL };

/* 124 million weights on a GPU; fewer, to save time, on a CPU */
static const struct { size_t width, vocabulary; } nets[SPEED_SIZES] = { { 768, 50304 }, { 256, 8192 },
                                                                        { 32, 100 } };

struct weights { /* in the layout of the optimizer */
    const struct meter *m;
    struct optim_param params[MAX_PARAMS];
    uint32_t n_params;
    size_t n;
    struct optim *cpu;
    struct cuda_optim *gpu;
    struct optim_hyper hyper;
    struct optim_state state;
    struct cuda_scan *scan; /* the result on a GPU */
    struct device_mem mine[3 + OPTIM_MAX_SLOTS];
    uint32_t n_mine;
};

bool speed_is_optimizer(const char *name)
{
    for (size_t i = 0; speed_optimizers[i] != NULL; i++)
        if (strcmp(speed_optimizers[i], name) == 0)
            return true;
    return false;
}

static void add_param(struct weights *w, size_t n)
{
    w->params[w->n_params++] = (struct optim_param){ .first = w->n, .n = n, .rate_factor = 1,
                                                     .weight_decay = 0.01, .adapts = true };
    w->n = (w->n + n + 15) / 16 * 16;
}

static void gpt2_weights(struct weights *w, const struct meter *m)
{
    const size_t width = nets[m->size].width, each[PER_LAYER] = {
        width, width, 3 * width * width, 3 * width, width * width, width,
        width, width, 4 * width * width, 4 * width, 4 * width * width, width,
    };

    *w = (struct weights){ .m = m, .hyper = { .learning_rate = 1e-5, .momentum = 0.9, .beta1 = 0.9,
                                              .beta2 = 0.999, .epsilon = 1e-8, .step = 3,
                                              .grad_scale = 0.5f } };
    add_param(w, nets[m->size].vocabulary * width);
    add_param(w, 1024 * width);
    for (uint32_t i = 0; i < LAYERS; i++)
        for (uint32_t k = 0; k < PER_LAYER; k++)
            add_param(w, each[k]);
    add_param(w, width);
    add_param(w, width);
}

static int update(void *arg, struct err *err)
{
    struct weights *w = arg;

    if (w->gpu != NULL)
        return w->m->cuda->math->optim_update(w->gpu, &w->hyper, &w->state, 1, w->m->stream, err);
    optim_update(w->cpu, 0, &w->hyper, &w->state);
    return 0;
}

static int scan(void *arg, struct err *err)
{
    struct weights *w = arg;

    if (w->gpu != NULL)
        return w->m->cuda->math->optim_scan(w->gpu, w->state.g, 0, w->scan, w->m->stream, err);
    optim_measure_gradient(w->cpu, 0, &w->state);
    return 0;
}

static int add_floats(struct weights *w, float **out, enum speed_fill fill, struct err *err)
{
    struct device_mem *mem = &w->mine[w->n_mine++];
    int rc = meter_alloc(w->m, mem, w->n * sizeof(float), err);

    *out = mem->base;
    return rc < 0 ? rc : meter_fill(w->m, *out, fill, TENSOR_F32, w->n * sizeof(float), err);
}

/* Opens the optimizer and its state; sets *n_slots to the number of slots in use. */
static int open_weights(struct weights *w, const struct optim_def *def, uint32_t *n_slots,
                        struct err *err)
{
    struct optim_opts opts = { .def = def, .n_parts = 1, .params = w->params,
                               .n_params = w->n_params };
    int rc = w->m->cuda != NULL ? w->m->cuda->math->optim_open(&opts, NULL, 0, &w->gpu, err)
                                : optim_new(&opts, &w->cpu, err);

    if (rc == 0)
        rc = add_floats(w, &w->state.w, SPEED_UNIFORM, err);
    if (rc == 0)
        rc = add_floats(w, &w->state.g, SPEED_UNIFORM, err);
    *n_slots = 0;
    for (uint32_t k = 0; rc == 0 && k < def->n_slots; k++)
        if (optim_uses(def, &w->hyper, k)) {
            rc = add_floats(w, &w->state.slots[k], SPEED_POSITIVE, err);
            ++*n_slots;
        }
    if (rc == 0 && w->m->cuda != NULL) {
        struct device_mem *mem = &w->mine[w->n_mine++];

        rc = meter_alloc(w->m, mem, sizeof(*w->scan), err);
        w->scan = mem->base;
    }
    return rc;
}

static void close_weights(struct weights *w)
{
    (void)meter_wait(w->m, NULL); /* after an error the GPU may still use the memory */
    optim_free(w->cpu);
    if (w->gpu != NULL)
        w->m->cuda->math->optim_close(w->gpu);
    for (uint32_t i = 0; i < w->n_mine; i++)
        meter_free(w->m, &w->mine[i]);
}

/* Measures `work`, which reads or writes all weights `touched` times. Returns 1 after an error. */
static int measure(struct weights *w, const char *name, const char *way, meter_work *work,
                   uint32_t touched, struct err *err)
{
    struct speed_line line = { .name = name, .way = way, .type = "float32" };
    size_t bytes = touched * sizeof(float) * w->n;
    double copy_us;
    int rc = meter_time(w->m, work, w, &line.us, err);

    if (rc == 0)
        rc = meter_time_copies(w->m, bytes, 1, &copy_us, err);
    if (rc < 0) {
        speed_print_error(name, way, line.type, err);
        return 1;
    }
    snprintf(line.shape, sizeof(line.shape), "[%zu]", w->n);
    line.work = (double)bytes / line.us * 1e6;
    line.limit = (double)bytes / copy_us * 1e6;
    speed_print(&line);
    return 0;
}

int speed_optimizer(const struct meter *m, const char *name)
{
    struct err err = { 0 };
    struct weights w;
    uint32_t n_slots;
    int n_failed;

    gpt2_weights(&w, m);
    if (open_weights(&w, optim_named(name), &n_slots, &err) < 0) {
        speed_print_error(name, "update", "float32", &err);
        n_failed = 1;
    } else {
        n_failed = measure(&w, name, "update", update, 3 + 2 * n_slots, &err);
        if (strcmp(name, "adamw") == 0) /* the scan does not depend on the optimizer */
            n_failed += measure(&w, name, "scan", scan, 1, &err);
    }
    close_weights(&w);
    return n_failed;
}
