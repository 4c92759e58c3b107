/* ops.c - the program `ops`; see `usage`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "device/device.h"
#include "ops/ops.h"
#include "ops/speed.h"

static const char usage[] =
    "usage: ops supported                               the table of config/OPS.md\n"
    "       ops test [--device cpu|cuda] [OP]           runs the cases of test/op forward\n"
    "       ops gradient [--device cpu|cuda] [OP]       compares the gradients of the cases with finite differences\n"
    "       ops speed [--device cpu|cuda] [--quick] [OP...]\n"
    "           times the kernels, and prints their share of a limit measured in the same run: a copy of as many\n"
    "           bytes, or a product of large matrices. OP: also adamw, momentum. --quick: tiny shapes, to check\n"
    "           that each case runs; the figures are meaningless\n\n"
    "A GPU is reached through the plugin on the library path: LD_LIBRARY_PATH=build, or build/emulated\n"
    "for the emulated GPU. Exit code 1: an op failed, or has no case in test/op.\n";

const char *ops_opsets(const struct op_def *def, char *out, size_t bytes)
{
    if (def->until == 0)
        snprintf(out, bytes, "from %" PRIu32, def->since);
    else if (def->until == def->since)
        snprintf(out, bytes, "%" PRIu32, def->since);
    else
        snprintf(out, bytes, "%" PRIu32 " to %" PRIu32, def->since, def->until);
    return out;
}

const char *ops_name(const struct op_def *def, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s%s%s", def->domain != NULL ? def->domain : "",
             def->domain != NULL ? "." : "", def->name);
    return out;
}

bool ops_is_chosen(const struct ops_options *o, const char *name)
{
    for (int i = 0; i < o->n_ops; i++)
        if (strcmp(o->ops[i], name) == 0)
            return true;
    return o->n_ops == 0;
}

bool ops_has_gradient(const struct op_def *def)
{
    return def->diff != 0 && def->cpu.bwd != NULL;
}

const char *ops_exempt(const struct cuda_api *cuda, const struct op_def *def, bool gradient)
{
    const struct op_kernels *k = cuda != NULL ? cuda->op(op_row(def)) : &def->cpu;

    if (k == NULL)
        return "no kernels for GPUs";
    if (k->fwd == NULL)
        return "computed while planning";
    if (!gradient)
        return NULL;
    if (!ops_has_gradient(def))
        return "no gradient";
    return k->bwd == NULL ? "no gradient on GPUs" : NULL;
}

const struct cuda_api *ops_open_gpu(void)
{
    struct device devices[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n;

    if (device_parse("cuda:0", 0, devices, &n, &err) < 0 || device_enter(&devices[0], &err) < 0) {
        fprintf(stderr,
                "ops: cuda:0: %s; set LD_LIBRARY_PATH to the folder of the plugin trainerd-cuda.so, "
                "which is build/emulated on a machine without a GPU\n",
                err.text);
        return NULL;
    }
    return device_cuda(&devices[0]);
}

static bool is_op(const char *name)
{
    size_t n;
    const struct op_def *const *all = op_all(&n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(all[i]->name, name) == 0)
            return true;
    return false;
}

static int refuse(void)
{
    fputs(usage, stderr);
    return 2;
}

int main(int argc, char **argv)
{
    struct ops_options o = { .program = argv[0], .device = "cpu" };
    const char *mode = argc > 1 ? argv[1] : "";
    bool is_speed = strcmp(mode, "speed") == 0;
    int at = 2;

    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--quick") == 0 && is_speed)
            o.is_quick = true;
        else if (strcmp(argv[at], "--device") == 0 && at + 1 < argc)
            o.device = argv[++at];
        else
            return refuse();
    }
    if (strcmp(o.device, "cpu") != 0 && strcmp(o.device, "cuda") != 0)
        return refuse();
    if (at < argc) {
        o.ops = argv + at;
        o.n_ops = argc - at;
    }
    if (o.n_ops > 1 && !is_speed)
        return refuse();
    for (int i = 0; i < o.n_ops; i++)
        if (!is_op(o.ops[i]) && !(is_speed && speed_is_optimizer(o.ops[i]))) {
            fprintf(stderr, "ops: '%s': expected the name of an op that `ops supported` lists\n",
                    o.ops[i]);
            return 2;
        }
    if (strcmp(mode, "supported") == 0 && argc == 2)
        return ops_supported();
    if (strcmp(mode, "test") == 0)
        return ops_test(&o);
    if (strcmp(mode, "gradient") == 0)
        return ops_gradient(&o);
    return is_speed ? ops_speed(&o) : refuse();
}
