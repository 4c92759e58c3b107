/* bench_gpu_kernels.c - measures the memory bandwidth of GPU kernels that are limited by it.
 *
 *   bench_gpu_kernels [--small] [--devices cuda:0] [WORD...]   WORD: only rows that contain it
 *
 * The first line is "copy X GB/s", the bytes read and written by copies on the device. Then follows
 * a line for each kernel, type and direction, with fields separated by tabs:
 *
 *   name  forward|backward|sweep  type  shape  microseconds  GB/s
 *
 * The GB/s count the bytes that must be transferred: each input as often as the row's definition
 * requires, each output once. Sizes are those of ResNet-50 with 256 images and GPT-2 with 16 x 1024
 * tokens. The calls rotate among sets of buffers whose total is several times the L2 cache, are
 * captured into one graph and timed with events; the median of several rounds counts. A row that
 * cannot run is printed with "!" in front and the reason, and the exit code is 1. --small: small
 * shapes, to check that everything runs. Exit code 2: there is no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/err.h"
#include "device/cuda.h"
#include "device/device.h"
#include "op/op.h"
#include "optim/named.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum { MAX_OPERANDS = 6, MAX_OUT = 2, MAX_SETS = 16, ROUNDS = 5, NO_GPU = 2 };
#define L2_BYTES ((size_t)60 << 20)
#define PATTERN_BYTES ((size_t)4 << 20)
#define COPY_BYTES ((size_t)1 << 30)

/* ---- rows ---- */

enum fill { UNIFORM, ABOVE_ZERO, LABELS }; /* (-1, 1); (0.5, 1.5); 0 to 999 */
enum { B = -1 };                           /* stands for the batch in a shape */

struct operand {
    int64_t dim[4];
    uint32_t rank;
    enum fill fill;
};

struct row {
    const char *domain, *op;
    uint32_t opset;
    int64_t batch, small; /* value of B, and with --small */
    uint32_t n_in;
    struct operand in[MAX_OPERANDS];
    const struct op_attr *attrs;
    uint32_t n_attrs;
    /* times that tensors of the size of input 0 must be read; 0 counts as 1. Statistics over more
     * data than fits into a multiprocessor need a separate pass. */
    double reads, reads_back;
    bool forward_only; /* the planner reuses the gradient, so there is no backward kernel */
    bool plain_in;     /* input 0 in plain order, the output with channels last */
};

#define IMAGE(c_, side_) { .dim = { B, c_, side_, side_ }, .rank = 4 }
#define VECTOR(n_, fill_) { .dim = { n_ }, .rank = 1, .fill = (fill_) }
#define ROWS(n_) { .dim = { B, n_ }, .rank = 2 }
#define NORM_OF(c_) VECTOR(c_, UNIFORM), VECTOR(c_, UNIFORM), VECTOR(c_, UNIFORM), VECTOR(c_, ABOVE_ZERO)
#define ATTRS(list_) .attrs = (list_), .n_attrs = sizeof(list_) / sizeof((list_)[0])
enum { IMAGES = 256, TOKENS = 16384 };

static const int64_t two_strides[] = { 2, 2 }, window_of_3[] = { 3, 3 }, ones_around[] = { 1, 1, 1, 1 },
                     heads_first[] = { 0, 2, 1, 3 }, columns[] = { 0 }, lines[] = { 1 };
static const struct op_attr training[] = { { .name = "training_mode", .type = OP_ATTR_INT, .i = 1 } };
static const struct op_attr pool[] = {
    { .name = "kernel_shape", .type = OP_ATTR_INTS, .n = 2, .ints = window_of_3 },
    { .name = "strides", .type = OP_ATTR_INTS, .n = 2, .ints = two_strides },
    { .name = "pads", .type = OP_ATTR_INTS, .n = 4, .ints = ones_around },
};
static const struct op_attr by_tanh[] = { { .name = "approximate", .type = OP_ATTR_STRING, .s = "tanh" } };
static const struct op_attr heads[] = { { .name = "perm", .type = OP_ATTR_INTS, .n = 4, .ints = heads_first } };
static const struct op_attr over_columns[] = { { .name = "axes", .type = OP_ATTR_INTS, .n = 1, .ints = columns },
                                               { .name = "keepdims", .type = OP_ATTR_INT, .i = 0 } };
static const struct op_attr over_lines[] = { { .name = "axes", .type = OP_ATTR_INTS, .n = 1, .ints = lines },
                                             { .name = "keepdims", .type = OP_ATTR_INT, .i = 0 } };
static const struct op_attr a_tenth[] = { { .name = "ratio", .type = OP_ATTR_FLOAT, .f = 0.1f } };
static const struct op_attr to_bfloat16[] = { { .name = "to", .type = OP_ATTR_INT, .i = TENSOR_BF16 } };

static const struct row rows[] = {
    /* element-wise */
    { NULL, "Relu", 14, IMAGES, 1, 1, .in = { IMAGE(256, 56) } },
    { NULL, "Add", 14, IMAGES, 1, 2, .in = { IMAGE(256, 56), IMAGE(256, 56) }, .forward_only = true },
    { NULL, "Add", 14, TOKENS, 16, 2, .in = { ROWS(768), VECTOR(768, UNIFORM) }, .forward_only = true },
    { NULL, "Mul", 14, TOKENS, 16, 2, .in = { ROWS(3072), ROWS(3072) } },
    { NULL, "Div", 14, TOKENS, 16, 2, .in = { ROWS(3072), { .dim = { B, 3072 }, .rank = 2, .fill = ABOVE_ZERO } } },
    { NULL, "Sigmoid", 13, TOKENS, 16, 1, .in = { ROWS(3072) } },
    { NULL, "Tanh", 13, TOKENS, 16, 1, .in = { ROWS(3072) } },
    { NULL, "Gelu", 20, TOKENS, 16, 1, .in = { ROWS(3072) }, ATTRS(by_tanh) },
    { NULL, "Erf", 13, TOKENS, 16, 1, .in = { ROWS(3072) } },
    { NULL, "Dropout", 10, TOKENS, 16, 1, .in = { ROWS(3072) }, ATTRS(a_tenth) },
    { "trainerd", "Convert", 1, TOKENS, 16, 1, .in = { ROWS(3072) }, ATTRS(to_bfloat16) },
    { "trainerd", "Reorder", 1, IMAGES, 1, 1, .in = { IMAGE(3, 224) }, .plain_in = true },
    { NULL, "Transpose", 13, 16, 1, 1, .in = { { .dim = { B, 1024, 12, 64 }, .rank = 4 } }, ATTRS(heads) },
    /* normalisation */
    { NULL, "BatchNormalization", 15, IMAGES, 1, 5, .in = { IMAGE(64, 112), NORM_OF(64) }, ATTRS(training),
      .reads = 2, .reads_back = 2 },
    { "trainerd", "BatchNormRelu", 1, IMAGES, 1, 5, .in = { IMAGE(64, 112), NORM_OF(64) }, ATTRS(training),
      .reads = 2, .reads_back = 2 },
    { "trainerd", "BatchNormRelu", 1, IMAGES, 1, 6, .in = { IMAGE(256, 56), NORM_OF(256), IMAGE(256, 56) },
      ATTRS(training), .reads = 2, .reads_back = 2 },
    { NULL, "LayerNormalization", 17, TOKENS, 16, 3, .in = { ROWS(768), VECTOR(768, UNIFORM), VECTOR(768, UNIFORM) } },
    { NULL, "LayerNormalization", 17, TOKENS, 16, 3, .in = { ROWS(4096), VECTOR(4096, UNIFORM), VECTOR(4096, UNIFORM) } },
    { NULL, "RMSNormalization", 23, TOKENS, 16, 2, .in = { ROWS(4096), VECTOR(4096, UNIFORM) } },
    /* softmax and losses */
    { NULL, "Softmax", 13, 4 * TOKENS, 16, 1, .in = { ROWS(1024) } },
    { NULL, "LogSoftmax", 13, 4 * TOKENS, 16, 1, .in = { ROWS(1024) } },
    { "trainerd", "SoftmaxCrossEntropy", 1, TOKENS, 2, 3,
      .in = { ROWS(50304), { .dim = { B }, .rank = 1, .fill = LABELS }, { .dim = { B }, .rank = 1, .fill = ABOVE_ZERO } } },
    { "trainerd", "SoftmaxCrossEntropy", 1, 8 * TOKENS, 16, 3,
      .in = { ROWS(1000), { .dim = { B }, .rank = 1, .fill = LABELS }, { .dim = { B }, .rank = 1, .fill = ABOVE_ZERO } } },
    /* pools and reductions */
    { NULL, "MaxPool", 12, IMAGES, 1, 1, .in = { IMAGE(64, 112) }, ATTRS(pool) },
    { NULL, "GlobalAveragePool", 1, IMAGES, 1, 1, .in = { IMAGE(2048, 7) } },
    { NULL, "ReduceSum", 11, TOKENS, 16, 1, .in = { ROWS(3072) }, ATTRS(over_columns), .forward_only = true },
    { NULL, "ReduceMean", 13, TOKENS, 16, 1, .in = { ROWS(3072) }, ATTRS(over_lines), .forward_only = true },
    { NULL, "ReduceMax", 13, TOKENS, 16, 1, .in = { ROWS(3072) }, ATTRS(over_lines), .forward_only = true },
};

/* ---- the GPU ---- */

static const struct cuda_api *cuda;
static struct cuda_stream *stream;
static bool is_small;
static struct err err;
static unsigned char *pattern[3]; /* for each enum fill: floats or labels; pinned memory */

static void stop(const char *what, int code)
{
    fprintf(stderr, "bench_gpu_kernels: %s: %s\n", what, err.text);
    exit(code);
}

static void must(int rc, const char *what)
{
    if (rc < 0)
        stop(what, 1);
}

static void wait_for_all(void)
{
    must(device_wait(cuda, stream, NULL, NULL, &err), "wait");
}

static float draw(uint32_t *x)
{
    *x = 1664525 * *x + 1013904223;
    return (float)(*x >> 8) / (1 << 24);
}

static void make_patterns(void)
{
    uint32_t x = 7;

    for (int f = UNIFORM; f <= LABELS; f++) {
        must(cuda->pin((void **)&pattern[f], PATTERN_BYTES, &err), "pinned memory");
        for (size_t i = 0; f != LABELS && i < PATTERN_BYTES / sizeof(float); i++)
            ((float *)pattern[f])[i] = f == UNIFORM ? 2 * draw(&x) - 1 : 0.5f + draw(&x);
        for (size_t i = 0; f == LABELS && i < PATTERN_BYTES / sizeof(int64_t); i++)
            ((int64_t *)pattern[f])[i] = (int64_t)(1000 * draw(&x));
    }
}

/* The upper half of a float is bfloat16. */
static void make_half(unsigned char *out, const unsigned char *floats, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(out + 2 * i, floats + 4 * i + 2, 2);
}

static void fill(void *buffer, enum fill f, enum tensor_dtype type, size_t bytes)
{
    static unsigned char *half;
    const unsigned char *from = pattern[f];
    size_t most = PATTERN_BYTES;

    if (type == TENSOR_BF16) {
        if (half == NULL)
            must(cuda->pin((void **)&half, PATTERN_BYTES / 2, &err), "pinned memory");
        make_half(half, from, PATTERN_BYTES / 4);
        from = half;
        most /= 2;
    }
    for (size_t at = 0; at < bytes; at += most)
        must(cuda->copy((char *)buffer + at, from, bytes - at < most ? bytes - at : most, stream,
                        &err),
             "fill");
    wait_for_all(); /* before `half` is overwritten */
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sets *us to the microseconds of the operations that work(arg) queues on the stream; they are
 * captured once. */
static int time_of(int (*work)(void *arg, struct err *err), void *arg, double *us)
{
    struct cuda_event *from, *to;
    struct cuda_graph *graph = NULL;
    double all[ROUNDS];
    uint32_t repeats = 1;
    int rc = work(arg, &err); /* once without capture: loads kernels that are loaded lazily */

    if (rc < 0)
        return rc;
    wait_for_all();
    must(cuda->capture_begin(stream, &err), "capture");
    rc = work(arg, &err);
    must(cuda->capture_end(stream, &graph, &err), "capture");
    if (rc < 0) {
        cuda->graph_close(graph);
        return rc;
    }
    must(cuda->event_open(true, &from, &err), "event");
    must(cuda->event_open(true, &to, &err), "event");
    for (int round = -2; round < (is_small ? 1 : ROUNDS); round++) {
        double ms;

        must(cuda->record(from, stream, &err), "event");
        for (uint32_t i = 0; i < repeats; i++)
            must(cuda->launch(graph, stream, &err), "launch");
        must(cuda->record(to, stream, &err), "event");
        wait_for_all();
        ms = cuda->elapsed_ms(from, to) / repeats;
        if (round < 0 && !is_small) /* sets the number of calls for 20 ms */
            repeats = ms > 20 ? 1 : ms > 0.02 ? (uint32_t)(20 / ms) : 1000;
        if (round >= 0)
            all[round] = ms * 1e3;
    }
    cuda->event_close(from);
    cuda->event_close(to);
    cuda->graph_close(graph);
    qsort(all, is_small ? 1 : ROUNDS, sizeof(*all), by_value);
    *us = all[is_small ? 0 : ROUNDS / 2];
    return 0;
}

/* ---- an op with its buffers ---- */

struct set { /* the buffers of one call */
    struct tensor in[MAX_OPERANDS], out[MAX_OUT], din[MAX_OPERANDS], dout[MAX_OUT];
    const struct tensor *in_at[MAX_OPERANDS], *out_at[MAX_OUT], *din_at[MAX_OPERANDS], *dout_at[MAX_OUT];
    void *save;
};

struct bench {
    const struct row *row;
    const struct op_def *def;
    const struct op_kernels *kernels;
    struct arena mem;
    void *param;
    struct op_plan plan;
    struct tensor in[MAX_OPERANDS], out[MAX_OUT];
    const struct tensor *in_at[MAX_OPERANDS];
    uint32_t n_sets;
    struct set sets[MAX_SETS];
    void *scratch;
    struct op_run run;
    struct op_run *run_there;
    void *mine[MAX_SETS * 20];
    uint32_t n_mine;
    bool backward;
};

static int take(struct bench *b, void **out, size_t bytes)
{
    int rc = cuda->alloc(out, bytes, &err);

    CHECK(b->n_mine < sizeof(b->mine) / sizeof(b->mine[0]));
    if (rc == 0)
        b->mine[b->n_mine++] = *out;
    return rc;
}

static struct tensor operand(const struct row *row, const struct operand *o)
{
    struct tensor t = { .dtype = o->fill == LABELS ? TENSOR_I64 : TENSOR_F32, .shape.rank = o->rank };

    for (uint32_t k = 0; k < o->rank; k++)
        t.shape.dim[k] = o->dim[k] == B ? (is_small ? row->small : row->batch) : o->dim[k];
    return t;
}

static int infer(struct bench *b)
{
    const struct row *row = b->row;
    struct op_infer f = { .def = b->def, .node = "bench", .opset = row->opset, .training = true, .attrs = row->attrs,
                          .n_attrs = row->n_attrs, .n_in = row->n_in, .in = b->in_at, .n_out = 1, .out = b->out,
                          .mem = &b->mem };

    for (uint32_t i = 0; i < row->n_in; i++) {
        b->in[i] = operand(row, &row->in[i]);
        b->in_at[i] = &b->in[i];
    }
    b->param = calloc(1, b->def->param_bytes + 1);
    if (b->param == NULL)
        return err_set(&err, ERR_NOMEM, "out of memory");
    f.param = b->param;
    return b->def->infer(&f, &err);
}

/* Selects types, then layouts, like the planner. */
static void lay_out(struct bench *b, enum tensor_dtype type)
{
    bool is_channels = b->def->layout == OP_LAYOUT_CHANNELS;

    for (uint32_t i = 0; i < b->row->n_in; i++) {
        struct tensor *t = &b->in[i];

        if (type == TENSOR_BF16 && t->dtype == TENSOR_F32 && (b->def->half_of & OP_IN(i)) != 0)
            t->dtype = type;
        if (t->shape.rank >= 3 &&
            ((is_channels && i == 0) || (b->def->channels_in & OP_IN(i)) != 0))
            t->layout = TENSOR_CHANNELS_LAST;
    }
    if (type == TENSOR_BF16 && (b->def->half_of & OP_OUT(0)) != 0)
        b->out[0].dtype = type;
    if (b->out[0].shape.rank >= 3 && (is_channels || b->row->plain_in))
        b->out[0].layout = TENSOR_CHANNELS_LAST;
}

static size_t bytes_of(const struct tensor *t)
{
    return tensor_bytes(t);
}

/* Returns the bytes that a call must transfer. */
static double traffic(const struct bench *b, bool backward)
{
    const struct row *row = b->row;
    size_t first = bytes_of(&b->in[0]), out = bytes_of(&b->out[0]);
    double reads = backward ? row->reads_back : row->reads, sum = (double)b->plan.save_bytes;

    reads = reads == 0 ? 1 : reads;
    if (!backward) {
        for (uint32_t i = 0; i < row->n_in; i++)
            sum += (double)bytes_of(&b->in[i]) * (i == 0 ? reads : 1);
        return sum + (double)out;
    }
    for (uint32_t i = 0; i < row->n_in; i++) {
        double bytes = (double)bytes_of(&b->in[i]);

        if ((b->def->bwd_reads & OP_IN(i)) != 0)
            sum += bytes * (bytes_of(&b->in[i]) == first ? reads : 1);
        if ((b->plan.want_din & OP_IN(i)) != 0)
            sum += bytes;
    }
    if ((b->def->bwd_reads & OP_OUT(0)) != 0)
        sum += (double)out * reads;
    return sum + (double)out * reads; /* dout */
}

static int open_set(struct bench *b, struct set *s)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->row->n_in; i++) {
        s->in[i] = s->din[i] = b->in[i];
        s->in_at[i] = &s->in[i];
        rc = take(b, &s->in[i].data, bytes_of(&b->in[i]));
        if (rc == 0)
            fill(s->in[i].data, b->row->in[i].fill, b->in[i].dtype, bytes_of(&b->in[i]));
        if (rc < 0 || (b->plan.want_din & OP_IN(i)) == 0)
            continue;
        s->din_at[i] = &s->din[i];
        rc = take(b, &s->din[i].data, bytes_of(&b->in[i]));
    }
    s->out[0] = s->dout[0] = b->out[0];
    s->out_at[0] = &s->out[0];
    s->dout_at[0] = &s->dout[0];
    if (rc == 0)
        rc = take(b, &s->out[0].data, bytes_of(&b->out[0]));
    if (rc == 0)
        rc = take(b, &s->dout[0].data, bytes_of(&b->out[0]));
    if (rc == 0)
        fill(s->dout[0].data, UNIFORM, b->out[0].dtype, bytes_of(&b->out[0]));
    if (rc == 0 && b->plan.save_bytes > 0)
        rc = take(b, &s->save, b->plan.save_bytes);
    return rc;
}

static int open_bench(struct bench *b, const struct row *row, enum tensor_dtype type)
{
    size_t per_call;
    int rc;

    *b = (struct bench){ .row = row, .def = op_find(row->domain, row->op, row->opset) };
    if (b->def == NULL)
        return err_set(&err, ERR_UNSUPPORTED, "no such op");
    b->kernels = cuda->op(op_row(b->def));
    if (b->kernels == NULL)
        return err_set(&err, ERR_UNSUPPORTED, "no kernels for GPUs");
    rc = infer(b);
    if (rc < 0)
        return rc;
    lay_out(b, type);
    b->plan = (struct op_plan){ .def = b->def, .node = "bench", .param = b->param, .training = true,
                                .want_din = b->def->diff | b->def->stat, .n_in = row->n_in, .n_out = 1,
                                .in = b->in_at, .out = b->out };
    b->plan.want_din &= OP_IN(row->n_in) - 1;
    if (b->kernels->plan != NULL)
        rc = b->kernels->plan(&b->plan, &err);
    if (rc == 0)
        rc = take(b, &b->scratch, b->plan.scratch_bytes + 1);
    if (rc == 0)
        rc = take(b, (void **)&b->run_there, sizeof(b->run));
    b->run = (struct op_run){ .seed = 1, .step = 1, .loss_scale = 1e-3f, .queue = stream, .device = b->run_there };
    if (rc == 0)
        rc = cuda->copy(b->run_there, &b->run, sizeof(b->run), stream, &err);
    per_call = (size_t)traffic(b, false);
    b->n_sets = is_small ? 2 : (uint32_t)(4 * L2_BYTES / per_call + 2);
    b->n_sets = b->n_sets > MAX_SETS ? MAX_SETS : b->n_sets;
    for (uint32_t i = 0; rc == 0 && i < b->n_sets; i++)
        rc = open_set(b, &b->sets[i]);
    return rc;
}

static void close_bench(struct bench *b)
{
    wait_for_all();
    if (b->plan.state != NULL && b->kernels->free_state != NULL)
        b->kernels->free_state(b->plan.state);
    for (uint32_t i = 0; i < b->n_mine; i++)
        cuda->free(b->mine[i]);
    free(b->param);
    arena_fini(&b->mem);
}

/* Queues one call on each set. */
static int call_all(void *arg, struct err *why)
{
    struct bench *b = arg;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->n_sets; i++) {
        struct set *s = &b->sets[i];
        struct op_call c = { .param = b->param, .state = b->plan.state, .n_in = b->row->n_in, .n_out = 1,
                             .in = s->in_at, .out = s->out_at, .save = s->save, .scratch = b->scratch,
                             .stream = 3, .run = &b->run };

        if (b->backward) {
            c.dout = s->dout_at;
            c.din = s->din_at;
        }
        rc = (b->backward ? b->kernels->bwd : b->kernels->fwd)(&c, why);
    }
    return rc;
}

/* ---- lines ---- */

static int has_failed;

static void print_row(const char *name, const char *way, const char *type, const char *shape,
                      double us, double bytes)
{
    printf("%s\t%s\t%s\t%s\t%.2f\t%.1f\n", name, way, type, shape, us, bytes / us / 1e3);
    fflush(stdout);
}

static void print_reason(const char *name, const char *way, const char *type)
{
    printf("!%s\t%s\t%s\t%s\n", name, way, type, err.text);
    fflush(stdout);
    has_failed = 1;
}

static void bench_row(const struct row *row, enum tensor_dtype type)
{
    static struct bench b;
    const char *name = tensor_dtype_name(type);
    char shape[96] = "";
    int rc = open_bench(&b, row, type);

    if (rc < 0)
        print_reason(row->op, "forward", name);
    else
        shape_print(&b.in[0].shape, shape, sizeof(shape));
    for (int way = 0; rc == 0 && way < (row->forward_only ? 1 : 2); way++) {
        const char *direction = way == 0 ? "forward" : "backward";
        double us;

        b.backward = way == 1;
        rc = time_of(call_all, &b, &us);
        if (rc < 0)
            print_reason(row->op, direction, name);
        else
            print_row(row->op, direction, name, shape, us / b.n_sets, traffic(&b, b.backward));
    }
    close_bench(&b);
}

/* ---- copies, passes over all weights, optimizers ---- */

struct pair {
    void *to, *from;
    size_t bytes;
};

static int copy_both_ways(void *arg, struct err *why)
{
    struct pair *p = arg;
    int rc = cuda->copy(p->to, p->from, p->bytes, stream, why);

    return rc < 0 ? rc : cuda->copy(p->from, p->to, p->bytes, stream, why);
}

static void bench_copy(void)
{
    struct pair p = { .bytes = is_small ? PATTERN_BYTES : COPY_BYTES };
    double us;

    must(cuda->alloc(&p.to, p.bytes, &err), "memory for the copy");
    must(cuda->alloc(&p.from, p.bytes, &err), "memory for the copy");
    fill(p.from, UNIFORM, TENSOR_F32, p.bytes);
    must(time_of(copy_both_ways, &p, &us), "copy");
    printf("copy %.1f GB/s\n", 4 * (double)p.bytes / us / 1e3);
    fflush(stdout);
    cuda->free(p.to);
    cuda->free(p.from);
}

enum { LAYERS = 12, PER_LAYER = 12, GPT2_PARAMS = 2 + LAYERS * PER_LAYER + 2 };

struct weights { /* the 124 million weights of GPT-2, in the layout of the optimizer */
    struct optim_param params[GPT2_PARAMS];
    uint32_t n_params;
    size_t n;
    struct cuda_optim *optim;
    struct optim_hyper hyper;
    struct optim_state state;
    struct cuda_scan *look;
};

static void add_param(struct weights *w, size_t n)
{
    w->params[w->n_params++] = (struct optim_param){ .first = w->n, .n = n, .rate_factor = 1, .weight_decay = 0.01,
                                                     .adapts = true };
    w->n = (w->n + n + 15) / 16 * 16;
}

static void gpt2_weights(struct weights *w)
{
    const size_t width = is_small ? 32 : 768, each[PER_LAYER] = {
        width, width, 3 * width * width, 3 * width, width * width, width,
        width, width, 4 * width * width, 4 * width, 4 * width * width, width,
    };

    *w = (struct weights){ .hyper = { .learning_rate = 1e-5, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999,
                                      .epsilon = 1e-8, .step = 3, .grad_scale = 0.5f } };
    add_param(w, (is_small ? 100 : 50304) * width);
    add_param(w, 1024 * width);
    for (uint32_t i = 0; i < LAYERS; i++)
        for (uint32_t k = 0; k < PER_LAYER; k++)
            add_param(w, each[k]);
    add_param(w, width);
    add_param(w, width);
}

static int update(void *arg, struct err *why)
{
    struct weights *w = arg;

    return cuda->math->optim_update(w->optim, &w->hyper, &w->state, 1, stream, why);
}

static int look(void *arg, struct err *why)
{
    struct weights *w = arg;

    return cuda->math->optim_scan(w->optim, w->state.g, 0, w->look, stream, why);
}

static float *floats(size_t n, enum fill f)
{
    void *p;

    must(cuda->alloc(&p, n * sizeof(float), &err), "memory of weights");
    fill(p, f, TENSOR_F32, n * sizeof(float));
    return p;
}

static void bench_optim(const char *name, bool with_check)
{
    struct weights w;
    struct optim_opts opts = { .def = optim_named(name), .n_parts = 1 };
    uint32_t slots = 0;
    char shape[64];
    double us;

    gpt2_weights(&w);
    opts.params = w.params;
    opts.n_params = w.n_params;
    snprintf(shape, sizeof(shape), "[%zu]", w.n);
    must(cuda->math->optim_open(&opts, NULL, 0, &w.optim, &err), name);
    w.state.w = floats(w.n, UNIFORM);
    w.state.g = floats(w.n, UNIFORM);
    for (uint32_t k = 0; k < opts.def->n_slots; k++)
        if (optim_uses(opts.def, &w.hyper, k)) {
            w.state.slots[k] = floats(w.n, ABOVE_ZERO);
            slots++;
        }
    if (time_of(update, &w, &us) < 0)
        print_reason(name, "sweep", "float32");
    else
        print_row(name, "sweep", "float32", shape, us,
                  (3.0 + 2 * slots) * sizeof(float) * (double)w.n);
    if (with_check) {
        must(cuda->alloc((void **)&w.look, sizeof(*w.look), &err), "look");
        if (time_of(look, &w, &us) < 0)
            print_reason("look at the gradient", "sweep", "float32");
        else
            print_row("look at the gradient", "sweep", "float32", shape, us,
                      (double)w.n * sizeof(float));
        cuda->free(w.look);
    }
    cuda->math->optim_close(w.optim);
    cuda->free(w.state.w);
    cuda->free(w.state.g);
    for (uint32_t k = 0; k < OPTIM_MAX_SLOTS; k++)
        cuda->free(w.state.slots[k]);
}

/* ---- */

static bool is_wanted(const char *name, char **words, int n)
{
    for (int i = 0; i < n; i++)
        if (strstr(name, words[i]) != NULL)
            return true;
    return n == 0;
}

static bool accepts_type(const struct row *row, enum tensor_dtype type)
{
    const struct op_def *def = op_find(row->domain, row->op, row->opset);

    return type == TENSOR_F32 || (def != NULL && def->half != OP_HALF_NO);
}

static void open_gpu(const char *spec)
{
    struct device devices[DEVICE_MAX];
    uint32_t n;

    if (device_parse(spec, 0, devices, &n, &err) < 0 || device_enter(&devices[0], &err) < 0)
        stop(spec, NO_GPU);
    cuda = device_cuda(&devices[0]);
    if (cuda == NULL) {
        (void)err_set(&err, ERR_INPUT, "not a GPU");
        stop(spec, NO_GPU);
    }
    must(cuda->stream_open(CUDA_HIGH_PRIORITY, &stream, &err), "stream");
    make_patterns();
}

int main(int argc, char **argv)
{
    static const enum tensor_dtype types[] = { TENSOR_BF16, TENSOR_F32 };
    static const char *const optimizers[] = { "adamw", "momentum" };
    const char *spec = "cuda:0";
    int at = 1;

    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--small") == 0)
            is_small = true;
        else if (strcmp(argv[at], "--devices") == 0 && at + 1 < argc)
            spec = argv[++at];
        else {
            fprintf(stderr, "usage: bench_gpu_kernels [--small] [--devices cuda:0] [WORD...]\n");
            return 2;
        }
    }
    open_gpu(spec);
    bench_copy();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t k = 0; k < 2; k++)
            if (is_wanted(rows[i].op, argv + at, argc - at) && accepts_type(&rows[i], types[k]))
                bench_row(&rows[i], types[k]);
    for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++)
        if (is_wanted(optimizers[i], argv + at, argc - at))
            bench_optim(optimizers[i], i == 0);
    return has_failed;
}
