/* speed.c - `ops speed`: the speed of each kernel, as a share of a limit that is measured in the same
 * run. A kernel that is limited by memory is compared with copies that read and write as many bytes,
 * a product with a product of large square matrices by the kernel library. */
#include "ops/speed.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "harness/product.h"
#include "ops/ops.h"

static const char *const names_of_types[] = { "float32", "bfloat16" };
static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_BF16 };
enum { N_TYPES = 2 };

struct mode {
    struct meter meter;
    double products[N_TYPES]; /* operations per second; 0: not measured yet */
    int n_failed;
};

/* ---- lines ---- */

void speed_print(struct speed_line *line)
{
    printf("%-36s %-8s %-8s %-20s %11.2f us %9.3f %s %7.3g %% of %s, %.3f %s\n", line->name,
           line->way, line->type, line->shape, line->us, line->work / 1e9,
           line->is_product ? "GFLOP/s" : "GB/s", 100 * line->work / line->limit,
           line->is_product ? "a product" : "a copy", line->limit / 1e9,
           line->is_product ? "GFLOP/s" : "GB/s");
    fflush(stdout);
}

void speed_print_error(const char *name, const char *way, const char *type, const struct err *err)
{
    printf("%-36s %-8s %-8s ERROR: %s\n", name, way, type, err->text);
    fflush(stdout);
}

/* Writes "[256,64,56,56]" */
static void print_shape(const struct shape *s, char *out, size_t bytes)
{
    char text[96], *to = out;

    shape_print(s, text, sizeof(text));
    for (const char *from = text; *from != '\0' && to + 1 < out + bytes; from++)
        if (*from != ' ')
            *to++ = *from;
    *to = '\0';
}

/* ---- the limit of products ---- */

static int run_product(void *arg, struct err *err)
{
    return product_run(arg) ? 0 : err_set(err, ERR_UNSUPPORTED, "the product of oneDNN failed");
}

static int time_product_cpu(const struct meter *m, enum tensor_dtype type, double *flops,
                            struct err *err)
{
    int64_t side = m->size == SPEED_QUICK ? 128 : 1024;
    struct product p;
    double us;
    int rc = product_open(&p, type, side) ? meter_time(m, run_product, &p, &us, err)
                                          : err_set(err, ERR_UNSUPPORTED, "oneDNN has no product");

    product_close(&p);
    if (rc == 0)
        *flops = 2.0 * (double)side * (double)side * (double)side / us * 1e6;
    return rc;
}

static int time_product_gpu(const struct meter *m, enum tensor_dtype type, double *flops,
                            struct err *err)
{
    static struct speed_op b;
    double us;
    int rc = speed_op_open(&b, m, &speed_square_product, type, err);

    if (rc == 0)
        rc = meter_time(m, speed_op_call, &b, &us, err);
    if (rc == 0)
        *flops = speed_op_flops(&b) * b.n_sets / us * 1e6;
    speed_op_close(&b);
    return rc;
}

static int limit_of(struct mode *mode, const struct speed_op *b, uint32_t type, double *limit,
                    struct err *err)
{
    double us;
    int rc = 0;

    if (b->flops > 0) {
        if (mode->products[type] == 0)
            rc = mode->meter.cuda != NULL
                     ? time_product_gpu(&mode->meter, types[type], &mode->products[type], err)
                     : time_product_cpu(&mode->meter, types[type], &mode->products[type], err);
        *limit = mode->products[type];
        return rc;
    }
    rc = meter_time_copies(&mode->meter, speed_op_bytes(b), b->n_sets, &us, err);
    *limit = (double)speed_op_bytes(b) * b->n_sets / us * 1e6;
    return rc;
}

/* ---- the mode ---- */

static void run_case(struct mode *mode, const struct speed_case *row, uint32_t type)
{
    static struct speed_op b;
    struct err err = { 0 };
    char name[96];
    int rc = speed_op_open(&b, &mode->meter, row, types[type], &err);
    int n_ways = rc < 0 || speed_op_has_backward(&b) ? 2 : 1;

    for (int i = 0; i < n_ways; i++) {
        struct speed_line line = { .name = ops_name(b.def, name, sizeof(name)),
                                   .way = i == 0 ? "forward" : "backward",
                                   .type = names_of_types[type], .is_product = b.flops > 0 };

        b.backward = i == 1;
        if (rc == 0)
            rc = meter_time(&mode->meter, speed_op_call, &b, &line.us, &err);
        if (rc == 0)
            rc = limit_of(mode, &b, type, &line.limit, &err);
        if (rc < 0) {
            speed_print_error(line.name, line.way, line.type, &err);
            mode->n_failed++;
            break;
        }
        print_shape(&b.in[0].shape, line.shape, sizeof(line.shape));
        line.us /= b.n_sets;
        line.work = (b.flops > 0 ? speed_op_flops(&b) : (double)speed_op_bytes(&b)) / line.us * 1e6;
        speed_print(&line);
    }
    speed_op_close(&b);
}

static void run_row(struct mode *mode, const struct op_def *def)
{
    const char *why = ops_exempt(mode->meter.cuda, def, false);
    bool has_half = def->half != OP_HALF_NO && (mode->meter.cuda != NULL || op_has_bfloat16());
    char name[96], opsets[32];
    uint32_t n = 0;

    for (size_t i = 0; why == NULL && i < n_speed_cases; i++) {
        const struct speed_case *row = &speed_cases[i];

        if (op_find(row->domain, row->op, row->opset) != def)
            continue;
        for (uint32_t type = 0; type < (has_half ? N_TYPES : 1); type++)
            run_case(mode, row, type);
        n++;
    }
    if (n == 0)
        printf("%-36s %-10s %s\n", ops_name(def, name, sizeof(name)),
               ops_opsets(def, opsets, sizeof(opsets)), why != NULL ? why : "no case");
}

int ops_speed(const struct ops_options *o)
{
    const struct cuda_api *cuda = strcmp(o->device, "cuda") == 0 ? ops_open_gpu() : NULL;
    static struct mode mode;
    struct err err = { 0 };
    size_t n;
    const struct op_def *const *all = op_all(&n);
    int rc;

    if (cuda == NULL && strcmp(o->device, "cuda") == 0)
        return 2;
    rc = meter_open(&mode.meter, cuda, o->is_quick, &err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (ops_is_chosen(o, all[i]->name))
            run_row(&mode, all[i]);
    for (size_t i = 0; rc == 0 && speed_optimizers[i] != NULL; i++)
        if (ops_is_chosen(o, speed_optimizers[i]))
            mode.n_failed += speed_optimizer(&mode.meter, speed_optimizers[i]);
    meter_close(&mode.meter);
    if (rc < 0) {
        fprintf(stderr, "ops: %s: %s\n", o->device, err.text);
        return 2;
    }
    return mode.n_failed > 0;
}
