/* reorder.c - Reorder (ours): copies input 0 to output 0, which have the same shape but different
 * layouts. The planner inserts it between ops that need different layouts; backward copies back. */
#include <stdlib.h>

#include "base/err.h"
#include "op/dnn.h"
#include "op/op_priv.h"

struct reorder_state {
    struct dnn *fwd, *bwd;
    size_t spare_bytes; /* beginning of scratch: a gradient that is accumulated */
};

static void free_state(void *state)
{
    struct reorder_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->fwd);
    dnn_free(s->bwd);
    free(s);
}

/* float32 or 16 bits (float16 on GPUs): the planner chooses types before layouts. */
static int infer(struct op_infer *f, struct err *err)
{
    enum tensor_dtype t = f->in[0]->dtype;
    int rc = op_check_input(f, 0, t == TENSOR_BF16 || t == TENSOR_F16 ? t : TENSOR_F32, -1, err);
    char text[192];

    f->out[0] = (struct tensor){ .dtype = f->in[0]->dtype, .shape = f->in[0]->shape };
    if (rc == 0 && f->in[0]->shape.rank < 3)
        rc = op_error(f, 0, err, "input 0 has shape %s; layouts differ only from rank 3 on",
                      shape_print(&f->in[0]->shape, text, sizeof(text)));
    return rc;
}

static int plan(struct op_plan *p, struct err *err)
{
    struct reorder_state *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Reorder '%s': out of memory", p->node);
    rc = dnn_reorder(p->in[0], &p->out[0], &s->fwd, err);
    if (rc == 0 && p->training && (p->want_din & OP_IN(0)) != 0)
        rc = dnn_reorder(&p->out[0], p->in[0], &s->bwd, err);
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "Reorder '%s'", p->node);
    }
    if (s->bwd != NULL)
        s->spare_bytes = op_round(tensor_bytes(p->in[0]));
    p->scratch_bytes =
        s->spare_bytes + op_max(dnn_scratch_bytes(s->fwd), dnn_scratch_bytes(s->bwd));
    p->state = s;
    return 0;
}

static int fwd(const struct op_call *c, struct err *err)
{
    struct reorder_state *s = c->state;
    void *args[DNN_ARGS] = { c->in[0]->data, c->out[0]->data };

    return dnn_run(s->fwd, args, op_at(c->scratch, s->spare_bytes), err);
}

static int bwd(const struct op_call *c, struct err *err)
{
    struct reorder_state *s = c->state;
    void *args[DNN_ARGS] = { NULL, op_din_at(c, 0, c->scratch) };
    int rc;

    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    args[0] = c->dout[0]->data;
    rc = dnn_run(s->bwd, args, op_at(c->scratch, s->spare_bytes), err);
    if (rc == 0)
        op_din_done(c, 0, args[1], 1.0f);
    return rc;
}

const struct op_def op_reorder = {
    .domain = "trainerd",
    .name = "Reorder",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY, /* the planner sets the two layouts */
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { plan, fwd, bwd, free_state },
};
