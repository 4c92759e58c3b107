/* map.c - computes tables of weights from positions and filters. */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/resize/resize_priv.h"

static int map_alloc(struct resize_map *map, size_t n, struct err *err)
{
    *map = (struct resize_map){ .n = n };
    map->row = calloc(n, sizeof(*map->row));
    return map->row != NULL ? 0 : err_set(err, ERR_NOMEM, "tables of Resize: out of memory");
}

static int map_alloc_weights(struct resize_map *map, struct err *err)
{
    map->w = calloc(map->n_w + 1, sizeof(*map->w));
    return map->w != NULL ? 0 : err_set(err, ERR_NOMEM, "tables of Resize: out of memory");
}

void resize_map_fini(struct resize_map *map)
{
    free(map->row);
    free(map->w);
    *map = (struct resize_map){ 0 };
}

static int64_t inside(double x, int64_t n) /* the element nearest to x */
{
    return x < 0 ? 0 : x > (double)(n - 1) ? n - 1 : (int64_t)x;
}

/* The extent of the filter over the input, for one element of the output. */
struct window {
    double from, to; /* integers: its first and last sample, which may be outside of the input */
    double center, scale;
    int64_t first, last; /* the elements that contain them */
};

static struct window window_of(const struct resize_param *p, const struct resize_axis *a, float at)
{
    struct window v = { .center = (double)at, .scale = 1 };

    if (p->filter == NULL) {
        v.from = v.to = (double)p->round(at);
    } else {
        v.scale = p->antialias && a->scale < 1 ? (double)a->scale : 1;
        v.from = ceil(v.center - p->radius / v.scale);
        v.to = floor(v.center + p->radius / v.scale);
    }
    v.first = inside(v.from, a->in);
    v.last = inside(v.to, a->in);
    return v;
}

/* Computes the weights w [last - first + 1]. */
static void compute_weights(const struct resize_param *p, const struct resize_axis *a,
                            const struct window *v, double *w)
{
    size_t n = (size_t)(v->last - v->first + 1), k;
    double sum = 0, i;

    for (k = 0; k < n; k++)
        w[k] = 0;
    for (i = v->from; i <= v->to && p->filter != NULL; i++) {
        double part = p->filter((i - v->center) * v->scale, (double)p->cubic_a);

        if (p->exclude_outside && (i < 0 || i > (double)(a->in - 1)))
            continue;
        w[inside(i, a->in) - v->first] += part;
        sum += part;
    }
    if (sum == 0) { /* nearest; or the filter is outside of the input */
        w[0] = 1;
        return;
    }
    for (k = 0; k < n; k++)
        w[k] /= sum;
}

/* Removes zeros at both ends, so that infinite neighbours do not matter. */
static void trim(struct resize_row *row, const float *w)
{
    while (row->n > 1 && w[row->w + row->n - 1] == 0)
        row->n--;
    while (row->n > 1 && w[row->w] == 0) {
        row->at++;
        row->w++;
        row->n--;
    }
}

int resize_map_make(const struct resize_param *p, const struct resize_axis *a,
                    struct resize_map *map, struct err *err)
{
    size_t j, k, most = 1;
    double *w = NULL;
    int rc = map_alloc(map, (size_t)a->out, err);

    for (j = 0; j < map->n && rc == 0; j++) {
        struct resize_row *row = &map->row[j];
        float at = p->place(a, (float)j);
        struct window v;

        if (a->cropped && !(at >= 0 && at <= (float)(a->in - 1)))
            continue;
        v = window_of(p, a, at);
        *row = (struct resize_row){ (uint32_t)v.first, (uint32_t)(v.last - v.first + 1), map->n_w };
        map->n_w += row->n;
        most = op_max(most, row->n);
    }
    if (rc == 0)
        rc = map_alloc_weights(map, err);
    if (rc == 0) {
        w = calloc(most, sizeof(*w));
        if (w == NULL)
            rc = err_set(err, ERR_NOMEM, "tables of Resize: out of memory");
    }
    for (j = 0; j < map->n && rc == 0; j++) {
        struct resize_row *row = &map->row[j];
        struct window v;

        if (row->n == 0)
            continue;
        v = window_of(p, a, p->place(a, (float)j));
        compute_weights(p, a, &v, w);
        for (k = 0; k < row->n; k++)
            map->w[row->w + k] = (float)w[k];
        trim(row, map->w);
    }
    free(w);
    if (rc < 0)
        resize_map_fini(map);
    return rc;
}

/* Positions are monotonous along an axis, so the outputs that use an input are adjacent. */
int resize_map_transpose(const struct resize_map *map, size_t n, struct resize_map *bwd,
                         struct err *err)
{
    size_t i, j, t;
    int rc = map_alloc(bwd, n, err);

    for (j = 0; j < map->n && rc == 0; j++)
        for (t = 0; t < map->row[j].n; t++) {
            struct resize_row *to = &bwd->row[map->row[j].at + t];

            if (to->n == 0)
                to->at = (uint32_t)j;
            to->n = (uint32_t)j - to->at + 1;
        }
    for (i = 0; i < n && rc == 0; i++) {
        bwd->row[i].w = bwd->n_w;
        bwd->n_w += bwd->row[i].n;
    }
    if (rc == 0)
        rc = map_alloc_weights(bwd, err);
    for (j = 0; j < map->n && rc == 0; j++)
        for (t = 0; t < map->row[j].n; t++) {
            const struct resize_row *to = &bwd->row[map->row[j].at + t];

            bwd->w[to->w + (j - to->at)] = map->w[map->row[j].w + t];
        }
    if (rc < 0)
        resize_map_fini(bwd);
    return rc;
}
