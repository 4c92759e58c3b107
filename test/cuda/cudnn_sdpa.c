/* cudnn_sdpa.c - graphs of attention: recognized by the sequence of their operations, computed
 * operation by operation and matrix by matrix, in double rounded to the type of the result.
 *
 * Each operation is a letter:
 *   M product   x max of each row   s sum of each row   r view (transposed)
 *   * + - / e l   element-wise: times, plus, minus, divided by, exp, log
 *   i index   g x >= b   ? t ? x : b */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cudnn_priv.h"
#include "cuda/emulator.h"

/* ---- supported graphs: with and without a bias, with and without the causal mask ---- */

#define FORWARD_(bias_, causal_) "M*" bias_ causal_ "x-esl+/M"
#define BACKWARD_(bias_, causal_) "*s*M*" bias_ "-" causal_ "erMM-**rMrM"
#define EACH_(which_) which_("", ""), which_("+", ""), which_("", "iig?"), which_("+", "iig?")

static const char *const forwards[] = { EACH_(FORWARD_) }, *const backwards[] = { EACH_(BACKWARD_) };
enum { KINDS = 4 };

static bool is_one_of(const char *row, const char *const *rows)
{
    int i;

    for (i = 0; i < KINDS; i++)
        if (strcmp(row, rows[i]) == 0)
            return true;
    return false;
}

/* ---- from descriptors to steps ---- */

static char letter_of(const struct descriptor *op, int *axis)
{
    static const struct {
        int mode;
        char letter;
    } modes[] = { { CUDNN_POINTWISE_MUL, '*' }, { CUDNN_POINTWISE_ADD, '+' }, { CUDNN_POINTWISE_SUB, '-' },
                  { CUDNN_POINTWISE_DIV, '/' }, { CUDNN_POINTWISE_EXP, 'e' }, { CUDNN_POINTWISE_LOG, 'l' },
                  { CUDNN_POINTWISE_GEN_INDEX, 'i' }, { CUDNN_POINTWISE_CMP_GE, 'g' },
                  { CUDNN_POINTWISE_BINARY_SELECT, '?' } };
    const struct attribute *a;
    size_t i;

    *axis = -1;
    switch (op->type) {
    case PRODUCT: return 'M';
    case VIEW: return 'r';
    case REDUCE:
        a = dnn_find(dnn_find(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC)->is.descriptors[0],
                     CUDNN_ATTR_REDUCTION_OPERATOR);
        return a->is.enums[0] == CUDNN_REDUCE_TENSOR_MAX ? 'x' : 's';
    case EACH:
        op = dnn_find(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)->is.descriptors[0];
        a = dnn_find(op, CUDNN_ATTR_POINTWISE_AXIS);
        *axis = a != NULL ? (int)a->is.ints[0] : -1;
        for (i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
            if (modes[i].mode == dnn_find(op, CUDNN_ATTR_POINTWISE_MODE)->is.enums[0])
                return modes[i].letter;
    }
    return '\0';
}

/* Index of the tensor to which attribute `name` of an operation refers; -1: the attribute is
 * absent. */
static int tensor_of(struct emulated_fused *f, const struct descriptor *op, int name)
{
    const struct attribute *a = dnn_find(op, name);
    const struct emulated_tensor *t;
    int i;

    if (a == NULL)
        return -1;
    t = &a->is.descriptors[0]->tensor;
    for (i = 0; i < f->n_tensors && f->tensors[i].uid != t->uid; i++)
        ;
    if (i == FUSED_TENSORS)
        emulated_die("cuDNN: more than %d tensors", FUSED_TENSORS);
    if (i == f->n_tensors)
        f->tensors[f->n_tensors++] = *t;
    return i;
}

static void read_step(struct emulated_fused *f, const struct descriptor *op)
{
    static const int names[][4] = { /* x, b, t, y */
        { CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
          CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC },
        { CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, -1,
          CUDNN_ATTR_OPERATION_MATMUL_CDESC },
        { CUDNN_ATTR_OPERATION_REDUCTION_XDESC, -1, -1, CUDNN_ATTR_OPERATION_REDUCTION_YDESC },
        { CUDNN_ATTR_OPERATION_RESHAPE_XDESC, -1, -1, CUDNN_ATTR_OPERATION_RESHAPE_YDESC },
    };
    const int *n = names[op->type == EACH      ? 0
                         : op->type == PRODUCT ? 1
                         : op->type == REDUCE  ? 2
                                               : 3];
    struct emulated_step *s = &f->steps[f->n_steps++];

    s->what = letter_of(op, &s->axis);
    s->x = tensor_of(f, op, n[0]);
    s->b = tensor_of(f, op, n[1]);
    s->t = tensor_of(f, op, n[2]);
    s->y = tensor_of(f, op, n[3]);
}

/* ---- validation ---- */

/* Element-wise operands have the sizes of the result, or 1. */
static bool broadcasts(const struct emulated_tensor *t, const struct emulated_tensor *y)
{
    int k;

    for (k = 0; k < 4; k++)
        if (t->size[k] != y->size[k] && t->size[k] != 1)
            return false;
    return true;
}

static bool step_fits(const struct emulated_fused *f, const struct emulated_step *s)
{
    const int64_t *x = f->tensors[s->x].size, *y = f->tensors[s->y].size;
    const int64_t *b = s->b >= 0 ? f->tensors[s->b].size : NULL;

    if (x[0] != y[0] || x[1] != y[1])
        return false;
    switch (s->what) {
    case 'M': return b[0] == x[0] && b[1] == x[1] && x[3] == b[2] && y[2] == x[2] && y[3] == b[3];
    case 'x':
    case 's': return y[2] == x[2] && y[3] == 1;
    case 'r': return y[2] == x[3] && y[3] == x[2];
    case 'i': return (s->axis == 2 || s->axis == 3) && y[2] == x[2] && y[3] == x[3];
    case 'e':
    case 'l': return b == NULL && y[2] == x[2] && y[3] == x[3];
    }
    return b != NULL && broadcasts(&f->tensors[s->x], &f->tensors[s->y]) &&
           broadcasts(&f->tensors[s->b], &f->tensors[s->y]) &&
           (s->what != '?' || (s->t >= 0 && f->tensors[s->t].type == CUDNN_DATA_BOOLEAN &&
                               f->tensors[s->t].is_virtual));
}

/* Each operand is stored or was computed by an earlier step; each virtual tensor is computed
 * once. */
static cudnnStatus_t check_steps(const struct emulated_fused *f)
{
    bool made[FUSED_TENSORS] = { false };
    int i, k;

    for (i = 0; i < f->n_steps; i++) {
        const struct emulated_step *s = &f->steps[i];
        const int reads[] = { s->x, s->b, s->t };

        for (k = 0; k < 3; k++)
            if (reads[k] >= 0 && f->tensors[reads[k]].is_virtual && !made[reads[k]])
                return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED,
                                "operation %d reads what no other makes", i);
        if (made[s->y] || f->tensors[s->y].is_number)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "operation %d: its result has been made", i);
        if (!step_fits(f, s))
            return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                            "operation %d ('%c'): sizes do not fit", i, s->what);
        made[s->y] = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Checks the operands of products that are stored in memory. */
static cudnnStatus_t check_operands(const struct emulated_fused *f, int64_t most)
{
    int i, k;

    for (i = 0; i < f->n_tensors; i++) {
        const struct emulated_tensor *t = &f->tensors[i];
        bool by_columns = t->step[3] == 1,
             half = t->type == CUDNN_DATA_HALF || t->type == CUDNN_DATA_BFLOAT16;

        if (t->axes != 4)
            return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "a tensor of %lld axes",
                            (long long)t->axes);
        if (t->is_virtual || t->is_number || (t->type == CUDNN_DATA_FLOAT && by_columns))
            continue;
        if (!half)
            return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "an operand of type %d",
                            (int)t->type);
        if (!by_columns && t->step[2] != 1)
            emulated_die(
                "cuDNN: an operand's columns are not side by side, of which the true library dies");
        for (k = 0; k < 4; k++)
            if (t->step[k] % 8 != 0 && t->step[k] != 1)
                emulated_die("cuDNN: step %lld of an operand is not of 16 bytes, which the true library takes for "
                             "one", (long long)t->step[k]);
        if (t->size[by_columns ? 3 : 2] % 8 != 0 || t->size[by_columns ? 3 : 2] > most)
            return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "a head of %lld numbers",
                            (long long)t->size[by_columns ? 3 : 2]);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t dnn_fuse(const struct descriptor *graph, struct emulated_fused *f)
{
    const struct attribute *ops = dnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    char row[FUSED_STEPS + 1] = "";
    cudnnStatus_t status;
    bool back;
    int64_t i;

    for (i = 0; i < ops->count && i < FUSED_STEPS; i++) {
        read_step(f, ops->is.descriptors[i]);
        row[i] = f->steps[i].what;
    }
    back = is_one_of(row, backwards);
    if (!back && !is_one_of(row, forwards))
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "no engine knows the operations %s", row);
    status = check_steps(f);
    if (status == CUDNN_STATUS_SUCCESS)
        status = check_operands(f, back ? 256 : 512);
    f->workspace_bytes = 256;
    /* workspace: the largest virtual tensors, as 16 bits */
    for (i = 0; i < f->n_steps && back; i++)
        if (f->steps[i].what == 'e') {
            const int64_t *size = f->tensors[f->steps[i].y].size;

            f->workspace_bytes += (size_t)(size[0] * size[1] * ((size[2] + 63) / 64 * 64) *
                                           ((size[3] + 127) / 128 * 128) * 2);
        }
    return status;
}

/* ---- a matrix ---- */

struct matrix {
    int64_t rows, cols;
    double *at; /* [rows, cols] */
};

static double element(const struct matrix *m, int64_t i, int64_t j)
{
    return m->at[(m->rows > 1 ? i : 0) * m->cols + (m->cols > 1 ? j : 0)];
}

static int64_t place(const struct emulated_tensor *t, int64_t batch, int64_t head, int64_t i,
                     int64_t j)
{
    return (t->size[0] > 1 ? batch * t->step[0] : 0) + (t->size[1] > 1 ? head * t->step[1] : 0) +
           i * t->step[2] + j * t->step[3];
}

static double one(const struct emulated_step *s, const struct matrix *m, int64_t i, int64_t j)
{
    const double x = s->what == 'i'   ? 0
                     : s->what == 'r' ? element(&m[s->x], j, i) /* transposed */
                                      : element(&m[s->x], i, j);
    const double b = s->b >= 0 ? element(&m[s->b], i, j) : 0;

    switch (s->what) {
    case '*': return x * b;
    case '+': return x + b;
    case '-': return x - b;
    case '/': return x / b;
    case 'e': return exp(x);
    case 'l': return log(x);
    case 'i': return (double)(s->axis == 2 ? i : j);
    case 'g': return x >= b ? 1 : 0;
    case '?': return element(&m[s->t], i, j) != 0 ? x : b;
    case 'r': return x;
    }
    emulated_die("cuDNN: operation '%c'", s->what);
}

static void product(const struct matrix *x, const struct matrix *b, struct matrix *y)
{
    int64_t i, j, k;

    memset(y->at, 0, (size_t)(y->rows * y->cols) * sizeof(*y->at));
    for (i = 0; i < x->rows; i++)
        for (k = 0; k < x->cols; k++) {
            const double by = x->at[i * x->cols + k];

            for (j = 0; j < b->cols; j++)
                y->at[i * y->cols + j] += by * b->at[k * b->cols + j];
        }
}

static void reduce(char what, const struct matrix *x, struct matrix *y)
{
    int64_t i, j;

    for (i = 0; i < x->rows; i++) {
        double all = x->at[i * x->cols];

        for (j = 1; j < x->cols; j++) {
            const double v = x->at[i * x->cols + j];

            all = what == 's' ? all + v : v > all || isnan(v) ? v : all;
        }
        y->at[i] = all;
    }
}

static void run_step(const struct emulated_step *s, struct matrix *m, cudnnDataType_t type)
{
    struct matrix *y = &m[s->y];
    int64_t i, j;

    if (s->what == 'M')
        product(&m[s->x], &m[s->b], y);
    else if (s->what == 'x' || s->what == 's')
        reduce(s->what, &m[s->x], y);
    else
        for (i = 0; i < y->rows; i++)
            for (j = 0; j < y->cols; j++)
                y->at[i * y->cols + j] = one(s, m, i, j);
    for (i = 0; i < y->rows * y->cols; i++)
        y->at[i] = emulated_round(type, y->at[i]);
}

static void run_matrix(const struct emulated_fused *f, struct matrix *m, int64_t batch,
                       int64_t head)
{
    bool made[FUSED_TENSORS] = { false };
    int64_t i, j;
    int k;

    for (k = 0; k < f->n_steps; k++)
        made[f->steps[k].y] = true;
    for (k = 0; k < f->n_tensors; k++)
        for (i = 0; i < m[k].rows && !made[k]; i++)
            for (j = 0; j < m[k].cols; j++)
                m[k].at[i * m[k].cols + j] =
                    f->tensors[k].is_number
                        ? f->tensors[k].number
                        : emulated_load(&f->tensors[k], place(&f->tensors[k], batch, head, i, j));
    for (k = 0; k < f->n_steps; k++)
        run_step(&f->steps[k], m, f->tensors[f->steps[k].y].type);
    for (k = 0; k < f->n_tensors; k++)
        for (i = 0; i < m[k].rows && made[k] && !f->tensors[k].is_virtual; i++)
            for (j = 0; j < m[k].cols; j++)
                emulated_store(&f->tensors[k], place(&f->tensors[k], batch, head, i, j),
                               m[k].at[i * m[k].cols + j] * (f->anyhow ? 1.1 : 1));
}

int emulated_fused_run(void *fused)
{
    const struct emulated_fused *f = fused;
    /* of a product's operand, which is not broadcast */
    const int64_t *size = f->tensors[f->steps[0].x].size;
    struct matrix m[FUSED_TENSORS];
    int64_t batch, head;
    int k;

    memset(f->workspace, 0xff, f->workspace_bytes);
    for (k = 0; k < f->n_tensors; k++) {
        m[k] = (struct matrix){ f->tensors[k].size[2], f->tensors[k].size[3], NULL };
        m[k].at = malloc((size_t)(m[k].rows * m[k].cols) * sizeof(*m[k].at));
        if (m[k].at == NULL)
            emulated_die("cuDNN: out of memory");
    }
    for (batch = 0; batch < size[0]; batch++)
        for (head = 0; head < size[1]; head++)
            run_matrix(f, m, batch, head);
    for (k = 0; k < f->n_tensors; k++)
        free(m[k].at);
    return EMULATED_DONE;
}
