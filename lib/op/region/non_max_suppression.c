/* non_max_suppression.c - NonMaxSuppression (opset 10): for each class of each image, the boxes by
 * descending score, without those that overlap an already selected one by more than iou_threshold.
 *   y [selected, 3]: image, class, box. Boxes with equal scores are ordered by index; a score of
 *   NaN is last.
 * The number of selected boxes determines the shape, so all inputs are constants of the model (or,
 * when a graph is evaluated, its inputs): a plan for a GPU computes the result while planning. No
 * gradient. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/op_priv.h"

enum { BOXES, SCORES, MOST, IOU, SCORE, WORK_BITS = 36 /* limit: 2^36 comparisons */ };

struct suppression {
    bool by_centre;    /* a box is its centre x y and width, height; else two corners y x y x */
    bool has_score;    /* boxes with a score up to min_score are excluded */
    float iou, min_score;
    size_t images, classes, boxes, most; /* most: limit per class and image */
    size_t found;
};

/* The edges of a box: low and high along two axes. */
struct edges {
    float low[2], high[2];
};

static struct edges edges_of(const struct suppression *p, const float *box)
{
    struct edges e;
    int k;

    for (k = 0; k < 2; k++) {
        float a = p->by_centre ? box[k] - box[2 + k] / 2 : box[k],
              b = p->by_centre ? box[k] + box[2 + k] / 2 : box[2 + k];

        e.low[k] = a < b || p->by_centre ? a : b;
        e.high[k] = a < b || p->by_centre ? b : a;
    }
    return e;
}

static bool overlap(const struct suppression *p, const float *box_a, const float *box_b)
{
    struct edges a = edges_of(p, box_a), b = edges_of(p, box_b);
    float shared = 1, area_a = 1, area_b = 1, all;
    int k;

    for (k = 0; k < 2; k++) {
        float low = a.low[k] > b.low[k] ? a.low[k] : b.low[k],
              high = a.high[k] < b.high[k] ? a.high[k] : b.high[k];

        if (!(high > low))
            return false;
        shared *= high - low;
        area_a *= a.high[k] - a.low[k];
        area_b *= b.high[k] - b.low[k];
    }
    all = area_a + area_b - shared;
    return shared > 0 && area_a > 0 && area_b > 0 && all > 0 && shared / all > p->iou;
}

static int compare_scores(const void *a, const void *b, void *scores)
{
    const float *score = scores;
    int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    float x = score[i], y = score[j];

    if (x != x || y != y)
        return (x != x) != (y != y) ? (x != x) - (y != y) : (i > j) - (i < j);
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

/* Selects boxes of one class of one image. Returns their number and their indices, in order, in
 * room [boxes]. */
static size_t select_boxes(const struct suppression *p, const float *boxes, const float *scores,
                           int64_t *room)
{
    size_t n = 0, kept = 0, i, k;

    for (i = 0; i < p->boxes; i++)
        if (!p->has_score || scores[i] > p->min_score)
            room[n++] = (int64_t)i;
    qsort_r(room, n, sizeof(*room), compare_scores, (void *)(uintptr_t)scores);
    for (i = 0; i < n && kept < p->most; i++) {
        for (k = 0; k < kept; k++)
            if (overlap(p, boxes + 4 * room[i], boxes + 4 * room[k]))
                break;
        if (k == kept)
            room[kept++] = room[i];
    }
    return kept;
}

/* y [limit, 3]; NULL: only counts. */
static size_t select_all(const struct suppression *p, const float *boxes, const float *scores,
                         int64_t *room, int64_t *y, size_t limit)
{
    size_t found = 0, s, c, i;

    for (s = 0; s < p->images; s++)
        for (c = 0; c < p->classes && p->most > 0; c++) {
            size_t n = select_boxes(p, boxes + s * p->boxes * 4,
                                    scores + (s * p->classes + c) * p->boxes, room);

            for (i = 0; i < n && y != NULL && found + i < limit; i++) {
                y[3 * (found + i)] = (int64_t)s;
                y[3 * (found + i) + 1] = (int64_t)c;
                y[3 * (found + i) + 2] = room[i];
            }
            found += n;
        }
    return found;
}

/* ---- infer ---- */

/* Checks that input i, which is present, is a known constant. */
static int need_known(const struct op_infer *f, uint32_t i, enum tensor_dtype dtype, int rank,
                      struct err *err)
{
    int rc = op_check_input(f, i, dtype, rank, err);

    if (rc == 0 && f->in[i]->data == NULL && tensor_elements(f->in[i]) > 0)
        rc = op_error(f, ERR_UNSUPPORTED, err,
                      "input %" PRIu32 " is computed by the graph, and decides how many boxes are kept; a step needs shapes "
                      "that are known before: cut the network before this node, and train on its inputs",
                      i);
    return rc;
}

/* Returns in *has whether optional input i is present, and checks that it is one known number. */
static int has_number(const struct op_infer *f, uint32_t i, enum tensor_dtype dtype, bool *has,
                      struct err *err)
{
    int rc = 0;

    *has = i < f->n_in && f->in[i] != NULL && tensor_elements(f->in[i]) != 0;
    if (*has)
        rc = need_known(f, i, dtype, -1, err);
    if (rc == 0 && *has && tensor_elements(f->in[i]) != 1)
        rc = op_error(f, ERR_INPUT, err,
                      "input %" PRIu32 " has %" PRId64 " elements; expected one number", i,
                      tensor_elements(f->in[i]));
    return rc;
}

static int read_numbers(struct op_infer *f, struct suppression *p, struct err *err)
{
    bool has_most = false, has_iou = false;
    int64_t centre = 0, most = 0;
    int rc = op_attr_i(f, "center_point_box", 0, &centre, err);

    if (rc == 0)
        rc = has_number(f, MOST, TENSOR_I64, &has_most, err);
    if (rc == 0)
        rc = has_number(f, IOU, TENSOR_F32, &has_iou, err);
    if (rc == 0)
        rc = has_number(f, SCORE, TENSOR_F32, &p->has_score, err);
    if (rc < 0)
        return rc;
    if (centre != 0 && centre != 1)
        return op_error(f, ERR_INPUT, err, "center_point_box is %" PRId64 "; expected 0 or 1",
                        centre);
    p->by_centre = centre == 1;
    if (has_most)
        most = *(const int64_t *)f->in[MOST]->data;
    if (has_iou)
        p->iou = *(const float *)f->in[IOU]->data;
    if (p->has_score)
        p->min_score = *(const float *)f->in[SCORE]->data;
    if (!(p->iou >= 0 && p->iou <= 1))
        return op_error(f, ERR_INPUT, err, "iou_threshold is %g; expected 0 to 1", (double)p->iou);
    p->most = most > 0 ? (size_t)most : 0;
    return 0;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct suppression *p = f->param;
    const struct shape *boxes, *scores;
    char text_boxes[192], text_scores[192];
    int64_t *room;
    int rc = need_known(f, BOXES, TENSOR_F32, 3, err);

    if (rc == 0)
        rc = need_known(f, SCORES, TENSOR_F32, 3, err);
    if (rc == 0)
        rc = read_numbers(f, p, err);
    if (rc < 0)
        return rc;
    boxes = &f->in[BOXES]->shape;
    scores = &f->in[SCORES]->shape;
    if (boxes->dim[2] != 4 || scores->dim[0] != boxes->dim[0] || scores->dim[2] != boxes->dim[1])
        return op_error(
            f, ERR_INPUT, err,
            "the boxes have shape %s and the scores %s; expected [n, boxes, 4] and [n, classes, boxes]",
            shape_print(boxes, text_boxes, sizeof(text_boxes)),
            shape_print(scores, text_scores, sizeof(text_scores)));
    p->images = (size_t)boxes->dim[0];
    p->classes = (size_t)scores->dim[1];
    p->boxes = (size_t)boxes->dim[1];
    if (p->most > p->boxes)
        p->most = p->boxes;
    if ((double)p->images * (double)p->classes * (double)p->boxes * (double)p->most > (double)((int64_t)1 << WORK_BITS))
        return op_error(f, ERR_UNSUPPORTED, err,
                        "%zu boxes of %zu classes, at most %zu of them kept, are more than 2^%d comparisons; lower "
                        "max_output_boxes_per_class, or select the best boxes with TopK before",
                        p->boxes, p->classes, p->most, WORK_BITS);
    room = arena_array(f->mem, p->boxes + 1, sizeof(*room));
    if (room == NULL)
        return op_error(f, ERR_NOMEM, err, "out of memory");
    if (tensor_elements(f->in[SCORES]) > 0)
        p->found = select_all(p, f->in[BOXES]->data, f->in[SCORES]->data, room, NULL, 0);
    f->out[0].dtype = TENSOR_I64;
    f->out[0].shape = shape_of(2, (int64_t)p->found, (int64_t)3);
    return op_check_size(f, err);
}

/* ---- kernels ---- */

static int plan(struct op_plan *p, struct err *err)
{
    const struct suppression *s = p->param;

    (void)err;
    p->scratch_bytes = s->boxes * sizeof(int64_t);
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct suppression *p = c->param;
    size_t n;

    if (p->found == 0)
        return 0;
    n = select_all(p, c->in[BOXES]->data, c->in[SCORES]->data, c->scratch, c->out[0]->data,
                   p->found);
    return n == p->found ? 0
                         : err_set(err, ERR_INPUT,
                                   "NonMaxSuppression: the boxes differ from those at planning");
}

static const char *const attrs[] = { "center_point_box", NULL };

const struct op_def op_non_max_suppression = {
    .name = "NonMaxSuppression",
    .since = 10,
    .n_in = { 2, 5 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct suppression),
    .infer = infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { plan, forward, NULL, NULL },
};
