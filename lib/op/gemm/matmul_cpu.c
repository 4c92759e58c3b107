/* matmul_cpu.c - a batched product is `loops` calls of one library kernel:
 *   b without batch:       one call; the batch of a becomes additional rows of one matrix
 *   equal batches:         one batched call
 *   any broadcast:         one call per matrix of y, with a table of the matrices of a and b */
#include <stdlib.h>

#include "base/err.h"
#include "op/dnn.h"
#include "op/gemm/gemm_priv.h"
#include "op/half.h"
#include "op/op_priv.h"

struct matmul_state {
    struct dnn *y, *da, *db;
    int64_t loops;
    int64_t *at_a, *at_b; /* [loops]: index of the matrix of a and b; NULL: one call */
    int64_t m, n, k;      /* sizes of the kernel */
    size_t spare_bytes;   /* beginning of scratch: the gradient of one call, to be accumulated */
    size_t sum_bytes;     /* after it: a bfloat16 gradient to which several calls add, in float32 */
};

void matmul_cpu_free(void *state)
{
    struct matmul_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->da);
    dnn_free(s->db);
    free(s->at_a);
    free(s->at_b);
    free(s);
}

/* Computes for each index of `whole`, in row-major order, the index of the matrix in the batch
 * `part` that is broadcast to it. */
static void fill_table(const struct shape *whole, const struct shape *part, int64_t n,
                       int64_t *table)
{
    uint32_t skip = whole->rank - part->rank, d;
    int64_t step[TENSOR_MAX_RANK] = { 0 }, size = 1, i;

    for (d = whole->rank; d-- > skip;) {
        step[d] = part->dim[d - skip] == 1 ? 0 : size;
        size *= part->dim[d - skip];
    }
    for (i = 0; i < n; i++) {
        int64_t rest = i, at = 0;

        for (d = whole->rank; d-- > 0;) {
            at += rest % whole->dim[d] * step[d];
            rest /= whole->dim[d];
        }
        table[i] = at;
    }
}

/* Computes the number of calls and the sizes of the kernel. */
static int plan_calls(const struct matmul_param *p, struct matmul_state *s, int64_t *batch,
                      struct err *err)
{
    int64_t n_a = shape_elements(&p->batch_a), n_b = shape_elements(&p->batch_b);
    int64_t n = shape_elements(&p->batch);

    s->loops = 1;
    s->m = p->m;
    s->n = p->n;
    s->k = p->k;
    *batch = 1;
    if (n_b == 1 && n_a == n && (n == 1 || !p->trans_a)) {
        s->m = n * p->m;
        return 0;
    }
    if (n_a == n && n_b == n) {
        *batch = n;
        return 0;
    }
    s->loops = n;
    s->at_a = calloc((size_t)n + 1, sizeof(*s->at_a));
    s->at_b = calloc((size_t)n + 1, sizeof(*s->at_b));
    if (s->at_a == NULL || s->at_b == NULL)
        return err_set(err, ERR_NOMEM, "table of %lld matrices: out of memory", (long long)n);
    fill_table(&p->batch, &p->batch_a, n, s->at_a);
    fill_table(&p->batch, &p->batch_b, n, s->at_b);
    return 0;
}

/* da and db as products, where ' marks an operand as it is multiplied:
 *   da [m, k] = dy b'^T       if a is transposed   da [k, m] = b' dy^T
 *   db [k, n] = a'^T dy       if b is              db [n, k] = dy^T a' */
static int make_kernels(const struct op_plan *op, int64_t batch, struct matmul_state *s,
                        struct err *err)
{
    enum tensor_dtype at = op->in[0]->dtype, bt = op->in[1]->dtype, yt = op->out[0].dtype;
    const struct matmul_param *p = op->param;
    struct dnn_matmul y = { .batch = batch, .m = s->m, .n = s->n, .k = s->k,
                            .trans_a = p->trans_a, .trans_b = p->trans_b, .bias = p->bias,
                            .a = at, .b = bt, .y = yt };
    struct dnn_matmul da = { .batch = batch, .m = s->m, .n = s->k, .k = s->n,
                             .trans_b = !p->trans_b, .a = yt, .b = bt, .y = at };
    struct dnn_matmul db = { .batch = batch, .m = s->k, .n = s->n, .k = s->m,
                             .trans_a = !p->trans_a, .a = at, .b = yt, .y = bt };
    int rc = dnn_matmul(&y, &s->y, err);

    if (p->trans_a)
        da = (struct dnn_matmul){ .batch = batch, .m = s->k, .n = s->m, .k = s->n,
                                  .trans_a = p->trans_b, .trans_b = true,
                                  .a = bt, .b = yt, .y = at };
    if (p->trans_b)
        db = (struct dnn_matmul){ .batch = batch, .m = s->n, .n = s->k, .k = s->m,
                                  .trans_a = true, .trans_b = p->trans_a,
                                  .a = yt, .b = at, .y = bt };
    if (s->at_a != NULL) /* sums over several calls */
        da.y = db.y = TENSOR_F32;
    if (rc == 0 && op_wants(op, 0))
        rc = dnn_matmul(&da, &s->da, err);
    if (rc == 0 && op_wants(op, 1))
        rc = dnn_matmul(&db, &s->db, err);
    return rc;
}

int matmul_cpu_plan(struct op_plan *p, struct err *err)
{
    struct matmul_state *s = calloc(1, sizeof(*s));
    int64_t batch = 1;
    uint32_t i;
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "MatMul '%s': out of memory", p->node);
    rc = plan_calls(p->param, s, &batch, err);
    if (rc == 0)
        rc = make_kernels(p, batch, s, err);
    if (rc < 0) {
        matmul_cpu_free(s);
        return err_wrap(err, rc, "MatMul '%s'", p->node);
    }
    if (s->da != NULL)
        s->spare_bytes = op_round(dnn_arg_bytes(s->da, 2));
    if (s->db != NULL)
        s->spare_bytes = op_max(s->spare_bytes, op_round(dnn_arg_bytes(s->db, 2)));
    for (i = 0; i < 2 && s->at_a != NULL; i++)
        if (op_wants(p, i) && op_is_half(p->in[i]))
            s->sum_bytes =
                op_max(s->sum_bytes, op_round((size_t)tensor_elements(p->in[i]) * sizeof(float)));
    p->scratch_bytes =
        s->spare_bytes + s->sum_bytes +
        op_max(dnn_scratch_bytes(s->y), op_max(dnn_scratch_bytes(s->da), dnn_scratch_bytes(s->db)));
    p->state = s;
    return 0;
}

/* Addresses of the matrices of call i. */
struct matrices {
    void *a, *b, *y;
};

static void *matrix_at(const struct tensor *t, int64_t number, int64_t elements)
{
    return op_element(t, (size_t)(number * elements));
}

static struct matrices matrices_at(const struct matmul_state *s, int64_t i, const struct tensor *a,
                                   const struct tensor *b, const struct tensor *y)
{
    if (s->at_a == NULL)
        return (struct matrices){ a->data, b->data, y->data };
    return (struct matrices){ matrix_at(a, s->at_a[i], s->m * s->k),
                              matrix_at(b, s->at_b[i], s->k * s->n), matrix_at(y, i, s->m * s->n) };
}

/* Stores the bias in every row: the product of matrices without elements is zero. */
static void store_bias(const struct op_call *c, size_t n)
{
    const struct tensor *y = c->out[0];
    size_t at, elements = (size_t)tensor_elements(y);

    for (at = 0; at < elements; at += n) {
        if (op_is_half(y))
            op_narrow(c->in[2]->data, n, op_element(y, at));
        else
            memcpy(op_element(y, at), c->in[2]->data, n * sizeof(float));
    }
}

int matmul_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct matmul_param *p = c->param;
    struct matmul_state *s = c->state;
    int64_t i;

    for (i = 0; i < s->loops; i++) {
        struct matrices at = matrices_at(s, i, c->in[0], c->in[1], c->out[0]);
        void *args[DNN_ARGS] = { at.a, at.b, at.y, p->bias ? c->in[2]->data : NULL };
        int rc = dnn_run(s->y, args, c->scratch, err);

        if (rc < 0)
            return rc;
    }
    if (p->k == 0 && p->bias)
        store_bias(c, (size_t)p->n);
    return 0;
}

/* Computes the gradient of operand `which`. If several calls add to the same matrix, the gradient
 * is zeroed first and the calls accumulate in the order of y. */
static int bwd_one(const struct op_call *c, uint32_t which, struct err *err)
{
    const struct matmul_param *p = c->param;
    struct matmul_state *s = c->state;
    struct dnn *d = which == 0 ? s->da : s->db;
    bool dy_first = which == 0 ? !p->trans_a : p->trans_b;
    bool several = s->at_a != NULL, apart = several && op_is_half(c->din[which]);
    bool added = several || op_adds(c, which);
    void *sum = op_at(c->scratch, s->spare_bytes), *rest = op_at(sum, s->sum_bytes);
    struct tensor to = *c->din[which], home;
    size_t elements;
    int64_t i;

    if (apart) {
        to.dtype = TENSOR_F32;
        to.data = sum;
    }
    elements = dnn_arg_bytes(d, 2) / tensor_dtype_bytes(to.dtype);
    if (apart || (several && !op_adds(c, which)))
        memset(to.data, 0, tensor_bytes(&to));
    for (i = 0; i < s->loops; i++) {
        struct matrices in = matrices_at(s, i, c->in[0], c->in[1], c->dout[0]);
        void *other = which == 0 ? in.b : in.a;
        void *args[DNN_ARGS] = { dy_first ? in.y : other, dy_first ? other : in.y };
        int rc;

        home = to;
        if (several)
            home.data = matrix_at(&to, which == 0 ? s->at_a[i] : s->at_b[i], (int64_t)elements);
        args[2] = added ? c->scratch : home.data;
        rc = dnn_run(d, args, rest, err);
        if (rc < 0)
            return rc;
        if (added)
            op_store_as(&home, args[2], elements, 1.0f, true);
    }
    if (apart)
        op_store_tensor(&to, c->din[which], op_adds(c, which));
    return 0;
}

static void bwd_bias(const struct op_call *c)
{
    const struct matmul_param *p = c->param;
    size_t rows = (size_t)(shape_elements(&p->batch) * p->m), cols = (size_t)p->n;
    const struct tensor *dy = c->dout[0];

    if (op_is_half(dy))
        op_sum_rows_half(dy->data, rows, cols, 1.0f, c->din[2]->data, op_adds(c, 2));
    else
        op_sum_rows(dy->data, rows, cols, 1.0f, c->din[2]->data, op_adds(c, 2));
}

int matmul_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct matmul_param *p = c->param;
    uint32_t i;
    int rc = 0;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (i = 0; rc == 0 && i < 2; i++)
        if (c->din[i] != NULL)
            rc = bwd_one(c, i, err);
    if (rc == 0 && p->bias && c->din[2] != NULL)
        bwd_bias(c);
    return rc;
}
