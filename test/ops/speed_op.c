/* speed_op.c - an op of a case of `ops speed`, with the buffers of its calls. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "ops/ops.h"
#include "ops/speed.h"

#define CACHE_BYTES ((size_t)60 << 20) /* the sets of a case have several times this size */

static int take(struct speed_op *b, void **out, size_t bytes, struct err *err)
{
    int rc;

    CHECK(b->n_mine < sizeof(b->mine) / sizeof(b->mine[0]));
    rc = meter_alloc(b->meter, &b->mine[b->n_mine], bytes, err);
    if (rc == 0)
        *out = b->mine[b->n_mine++].base;
    return rc;
}

static void set_operand(struct speed_op *b, uint32_t i)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_F32, TENSOR_I64, TENSOR_BOOL };
    const struct speed_operand *o = &b->row->in[i];
    struct tensor *t = &b->in[i];

    *t = (struct tensor){ .dtype = o->ints != NULL ? TENSOR_I64 : types[o->fill],
                          .shape.rank = o->rank, .data = (void *)o->ints };
    for (uint32_t k = 0; k < o->rank; k++)
        t->shape.dim[k] = o->dim[k] == SPEED_BATCH ? b->row->batch[b->meter->size] : o->dim[k];
    b->in_at[i] = t;
}

static int infer(struct speed_op *b, struct err *err)
{
    const struct speed_case *row = b->row;
    struct op_infer f = { .def = b->def, .node = "speed", .opset = row->opset, .training = true,
                          .attrs = row->attrs, .n_attrs = row->n_attrs, .in = b->in_at, .n_out = 1,
                          .out = &b->out, .mem = &b->mem };
    int rc;

    while (b->n_in < SPEED_MAX_IN && row->in[b->n_in].rank > 0)
        set_operand(b, b->n_in++);
    f.n_in = b->n_in;
    f.param = b->param = calloc(1, b->def->param_bytes + 1);
    if (b->param == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = b->def->infer(&f, err);
    if (rc == 0 && b->def->flops != NULL)
        b->flops = b->def->flops(&f);
    return rc;
}

/* Selects types, then layouts, like the planner. */
static void lay_out(struct speed_op *b, enum tensor_dtype type)
{
    bool is_channels = b->def->layout == OP_LAYOUT_CHANNELS;

    for (uint32_t i = 0; i < b->n_in; i++) {
        struct tensor *t = &b->in[i];

        if (t->dtype == TENSOR_F32 && (b->def->half_of & OP_IN(i)) != 0 && !b->row->in[i].is_weight)
            t->dtype = type;
        if (t->shape.rank >= 3 &&
            ((is_channels && i == 0) || (b->def->channels_in & OP_IN(i)) != 0))
            t->layout = TENSOR_CHANNELS_LAST;
    }
    if (b->out.dtype == TENSOR_F32 && (b->def->half_of & OP_OUT(0)) != 0)
        b->out.dtype = type;
    if (b->out.shape.rank >= 3 && (is_channels || b->row->plain_in))
        b->out.layout = TENSOR_CHANNELS_LAST;
}

static int plan(struct speed_op *b, struct err *err)
{
    int rc = 0;

    b->plan = (struct op_plan){ .def = b->def, .node = "speed", .param = b->param, .training = true,
                                .want_din = (b->def->diff | b->def->stat) & (OP_IN(b->n_in) - 1),
                                .n_in = b->n_in, .n_out = 1, .in = b->in_at, .out = &b->out };
    if (b->kernels->plan != NULL)
        rc = b->kernels->plan(&b->plan, err);
    if (rc == 0)
        rc = take(b, &b->scratch, b->plan.scratch_bytes + 1, err);
    b->run = (struct op_run){ .seed = 1, .step = 1, .loss_scale = 1e-3f };
    if (rc < 0 || b->meter->cuda == NULL)
        return rc;
    b->run.queue = b->meter->stream;
    rc = take(b, (void **)&b->run.device, sizeof(b->run), err);
    return rc < 0 ? rc : meter_copy(b->meter, (void *)b->run.device, &b->run, sizeof(b->run), err);
}

static int take_tensor(struct speed_op *b, struct tensor *t, const struct speed_operand *o,
                       struct err *err)
{
    size_t bytes = tensor_bytes(t);
    int rc = take(b, &t->data, bytes, err);

    if (rc < 0)
        return rc;
    return o->ints != NULL ? meter_copy(b->meter, t->data, o->ints, bytes, err)
                           : meter_fill(b->meter, t->data, o->fill, t->dtype, bytes, err);
}

static int open_set(struct speed_op *b, struct speed_set *s, struct err *err)
{
    static const struct speed_operand uniform = { .fill = SPEED_UNIFORM };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->n_in; i++) {
        s->in[i] = s->din[i] = b->in[i];
        s->in_at[i] = &s->in[i];
        rc = take_tensor(b, &s->in[i], &b->row->in[i], err);
        if (rc < 0 || !speed_op_has_backward(b) || (b->plan.want_din & OP_IN(i)) == 0)
            continue;
        s->din_at[i] = &s->din[i];
        rc = take(b, &s->din[i].data, tensor_bytes(&b->in[i]), err);
    }
    s->out = s->dout = b->out;
    s->out_at = &s->out;
    s->dout_at = &s->dout;
    if (rc == 0)
        rc = take(b, &s->out.data, tensor_bytes(&b->out), err);
    if (rc == 0 && speed_op_has_backward(b))
        rc = take_tensor(b, &s->dout, &uniform, err);
    if (rc == 0 && b->plan.save_bytes > 0)
        rc = take(b, &s->save, b->plan.save_bytes, err);
    return rc;
}

int speed_op_open(struct speed_op *b, const struct meter *m, const struct speed_case *row,
                  enum tensor_dtype type, struct err *err)
{
    size_t sets;
    int rc;

    *b = (struct speed_op){ .meter = m, .row = row,
                            .def = op_find(row->domain, row->op, row->opset) };
    if (b->def == NULL)
        return err_set(err, ERR_UNSUPPORTED, "no such op");
    b->kernels = m->cuda != NULL ? m->cuda->op(op_row(b->def)) : &b->def->cpu;
    if (b->kernels == NULL)
        return err_set(err, ERR_UNSUPPORTED, "no kernels for GPUs");
    rc = infer(b, err);
    if (rc < 0)
        return rc;
    lay_out(b, type);
    rc = plan(b, err);
    if (rc < 0)
        return rc;
    sets = m->size == SPEED_QUICK ? 1 : b->flops > 0 ? 2 : 4 * CACHE_BYTES / speed_op_bytes(b) + 2;
    b->n_sets = sets < SPEED_MAX_SETS ? (uint32_t)sets : SPEED_MAX_SETS;
    for (uint32_t i = 0; rc == 0 && i < b->n_sets; i++)
        rc = open_set(b, &b->sets[i], err);
    return rc;
}

void speed_op_close(struct speed_op *b)
{
    (void)meter_wait(b->meter, NULL); /* after an error the GPU may still use the buffers */
    if (b->plan.state != NULL && b->kernels->free_state != NULL)
        b->kernels->free_state(b->plan.state);
    for (uint32_t i = 0; i < b->n_mine; i++)
        meter_free(b->meter, &b->mine[i]);
    free(b->param);
    arena_fini(&b->mem);
}

bool speed_op_has_backward(const struct speed_op *b)
{
    return ops_has_gradient(b->def) && b->kernels->bwd != NULL && b->plan.want_din != 0;
}

int speed_op_call(void *arg, struct err *err)
{
    struct speed_op *b = arg;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->n_sets; i++) {
        struct speed_set *s = &b->sets[i];
        struct op_call c = { .param = b->param, .state = b->plan.state, .n_in = b->n_in, .n_out = 1,
                             .in = s->in_at, .out = &s->out_at, .save = s->save,
                             .scratch = b->scratch, .stream = 3, .run = &b->run };

        if (b->backward) {
            c.dout = &s->dout_at;
            c.din = s->din_at;
        }
        rc = (b->backward ? b->kernels->bwd : b->kernels->fwd)(&c, err);
    }
    return rc;
}

size_t speed_op_bytes(const struct speed_op *b)
{
    size_t first = tensor_bytes(&b->in[0]), out = tensor_bytes(&b->out), sum = b->plan.save_bytes;
    size_t reads = b->backward ? b->row->reads_back : b->row->reads;

    reads = reads == 0 ? 1 : reads;
    for (uint32_t i = 0; i < b->n_in; i++) {
        size_t bytes = tensor_bytes(&b->in[i]);

        if (!b->backward)
            sum += b->row->in[i].is_partial ? out : bytes * (i == 0 ? reads : 1);
        else if ((b->def->bwd_reads & OP_IN(i)) != 0)
            sum += bytes * (bytes == first ? reads : 1);
        if (b->backward && (b->plan.want_din & OP_IN(i)) != 0)
            sum += bytes;
    }
    if (!b->backward)
        return sum + out;
    if ((b->def->bwd_reads & OP_OUT(0)) != 0)
        sum += out * reads;
    return sum + out * reads; /* dout */
}

double speed_op_flops(const struct speed_op *b)
{
    return b->backward ? 2 * b->flops : b->flops;
}
