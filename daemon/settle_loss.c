/* settle_loss.c - losses and metrics of the job as rows of domain trainerd: names, attributes, and
 * which feature they compare with. */
#include "daemon/settle.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/op.h"

#define LOSS(NAME, word, op, compares, tensor, smoothing, classes, pos_weight, delta)                       \
    [TRAIN_LOSS_##NAME] = { op, TRAIN_##compares, pos_weight, delta },
static const struct {
    const char *op; /* NULL: the graph computes the loss */
    enum train_labels labels;
    bool pos_weight, delta;
} losses[] = { TRAIN_LOSS_LIST(LOSS) };

static const enum tensor_dtype label_types[] = {
    [TRAIN_CLASSES] = TENSOR_I64,
    [TRAIN_SIDES] = TENSOR_F32,
    [TRAIN_NUMBERS] = TENSOR_F32,
    [TRAIN_NOTHING] = TENSOR_NONE,
};

#define METRIC(NAME, word, figure, of_classes, of_sides, of_numbers)                                         \
    [TRAIN_METRIC_##NAME] = { #word, { of_classes, of_sides, of_numbers }, TRAIN_##figure },
static const struct {
    const char *name, *op[TRAIN_NOTHING]; /* by enum train_labels of the first loss */
    enum train_figure figure;
} metrics[] = { TRAIN_METRIC_LIST(METRIC) };

enum { MAX_ATTRS = 4 };

static void *allocate(struct settled *s, size_t n, size_t size, struct err *err)
{
    void *p = arena_array(&s->conf->mem, n, size);

    if (p == NULL)
        (void)err_set(err, ERR_NOMEM, "out of memory");
    return p;
}

static struct op_attr *add(struct op_attr *attrs, uint32_t *n, const char *name,
                           enum op_attr_type type)
{
    CHECK(*n < MAX_ATTRS);
    attrs[*n] = (struct op_attr){ .name = name, .type = type };
    return &attrs[(*n)++];
}

static void add_class_axis(struct op_attr *attrs, uint32_t *n, enum train_class_axis axis)
{
    if (axis != TRAIN_AXIS_AUTO)
        add(attrs, n, "class_axis", OP_ATTR_INT)->i = axis == TRAIN_AXIS_LAST ? -1 : 1;
}

/* Only what is not the default: a row refuses attributes that it does not know. */
static int add_attrs(struct settled *s, const struct conf_objective *o, struct plan_measure *m,
                     struct err *err)
{
    struct op_attr *attrs = allocate(s, MAX_ATTRS, sizeof(*attrs), err);
    float *weights = allocate(s, o->n_class_weights, sizeof(*weights), err);

    if (attrs == NULL || weights == NULL)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < o->n_class_weights; i++)
        weights[i] = (float)o->class_weights[i];
    m->attrs = attrs;
    if (o->label_smoothing > 0)
        add(attrs, &m->n_attrs, "label_smoothing", OP_ATTR_FLOAT)->f = (float)o->label_smoothing;
    if (!isnan(o->ignore_index))
        add(attrs, &m->n_attrs, "ignore_index", OP_ATTR_INT)->i = (int64_t)o->ignore_index;
    add_class_axis(attrs, &m->n_attrs, o->class_axis);
    if (losses[o->type].pos_weight)
        add(attrs, &m->n_attrs, "pos_weight", OP_ATTR_FLOAT)->f = (float)o->pos_weight;
    if (losses[o->type].delta)
        add(attrs, &m->n_attrs, "delta", OP_ATTR_FLOAT)->f = (float)o->delta;
    if (o->n_class_weights > 0) {
        struct op_attr *a = add(attrs, &m->n_attrs, "class_weights", OP_ATTR_FLOATS);

        a->floats = weights;
        a->n = o->n_class_weights;
    }
    return 0;
}

static int add_loss(struct settled *s, const struct conf_objective *o, struct err *err)
{
    struct train_opts *t = &s->train;
    struct plan_measure *m = &s->arrays.losses[t->n_losses++];

    *m = (struct plan_measure){ .op = losses[o->type].op,
                                .tensor = o->tensor,
                                .target = t->n_targets,
                                .weight = (float)o->weight };
    if (m->op == NULL)
        return 0;
    s->arrays.targets[t->n_targets++] =
        (struct train_target){ .feature = o->labels, .dtype = label_types[losses[o->type].labels] };
    return add_attrs(s, o, m, err);
}

/* Computes the metric of what the first loss compares; job_check.c has refused a metric that does not
 * apply to it. */
static int add_metric(struct settled *s, enum train_metric_type type, struct err *err)
{
    const struct plan_measure *loss = &s->arrays.losses[0];
    const char *op = metrics[type].op[losses[s->conf->objective.loss.type].labels];
    struct train_metric *m = &s->arrays.metrics[s->train.n_metrics++];
    struct op_attr *attrs = allocate(s, MAX_ATTRS, sizeof(*attrs), err);
    uint32_t n = 0;

    if (attrs == NULL)
        return ERR_NOMEM;
    *m = (struct train_metric){ .name = metrics[type].name,
                                .measure = { .op = strcmp(op, TRAIN_OP_OF_LOSS) == 0 ? loss->op : op,
                                             .tensor = loss->tensor,
                                             .target = loss->target },
                                .figure = metrics[type].figure };
    if (!isnan(s->conf->objective.loss.ignore_index))
        add(attrs, &n, "ignore_index", OP_ATTR_INT)->i =
            (int64_t)s->conf->objective.loss.ignore_index;
    add_class_axis(attrs, &n, s->conf->objective.loss.class_axis);
    if (type == TRAIN_METRIC_TOP_K_ACCURACY)
        add(attrs, &n, "k", OP_ATTR_INT)->i = s->conf->objective.top_k;
    m->measure.attrs = attrs;
    m->measure.n_attrs = n;
    return 0;
}

int settle_losses(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;
    int rc = add_loss(s, &c->objective.loss, err);

    for (uint32_t i = 0; i < c->objective.n_more_losses && rc == 0; i++)
        rc = add_loss(s, &c->objective.more_losses[i], err);
    for (uint32_t i = 0; i < c->objective.n_metrics && rc == 0; i++)
        rc = add_metric(s, c->objective.metrics[i], err);
    t->targets = s->arrays.targets;
    t->losses = s->arrays.losses;
    t->metrics = s->arrays.metrics;
    t->mean_of_weights =
        c->objective.loss.n_class_weights > 0 || !isnan(c->objective.loss.ignore_index);
    return rc;
}
