/* walk_cuda.cu - divides the work of a reduction on a GPU. See walk.cuh. */
#include "op/reduce/walk.cuh"

enum {
    THREADS = 256,
    COLUMN_LANES = 8,   /* 32 adjacent columns are whole cache lines */
    PACKS_EACH = 4,     /* per lane, before more lanes are used */
    BLOCKS = OP_PROCESSORS * 8,   /* enough to occupy a GPU */
    SPLIT_PACKS = 8,    /* minimum per lane if a y is split */
    CHUNK = 16,
};

/* Removes axes of size 1, and merges adjacent axes that are contiguous. */
static uint32_t merged(const struct reduce_axis *axes, uint32_t n, struct reduce_axis *out)
{
    uint32_t m = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct reduce_axis a = axes[i];

        if (a.size == 1)
            continue;
        if (m > 0 && out[m - 1].gone == a.gone && (a.gone || out[m - 1].y == a.size * a.y)) {
            a.size *= out[m - 1].size;
            m--;
        }
        out[m++] = a;
    }
    return m;
}

static unsigned power_of_two(size_t at_most, unsigned limit)
{
    unsigned p = 1;

    while (2 * p <= limit && 2 * (size_t)p <= at_most)
        p *= 2;
    return p;
}

/* Computes group, lanes and splits. */
static void divide_work(struct reduce_walk *w, size_t pack)
{
    size_t packs, blocks;

    packs = w->each / pack;
    w->lanes = power_of_two(packs / PACKS_EACH, w->columns ? COLUMN_LANES : THREADS);
    w->group = power_of_two(w->ys, THREADS / w->lanes);
    while (w->group * w->lanes < 32 || (w->group < w->ys && w->group * w->lanes < THREADS))
        w->group *= 2;
    blocks = (w->ys + w->group - 1) / w->group;
    w->splits = 1;
    if (blocks > 0 && blocks < BLOCKS)
        w->splits = (unsigned)(packs / ((size_t)w->lanes * SPLIT_PACKS));
    if (blocks > 0 && w->splits > BLOCKS / blocks)
        w->splits = (unsigned)(BLOCKS / blocks);
    if (w->splits < 1)
        w->splits = 1;
    w->chunk = (w->each + w->splits - 1) / w->splits;
    w->chunk = (w->chunk + CHUNK - 1) / CHUNK * CHUNK;
    if (w->splits > 1)
        w->splits = (unsigned)((w->each + w->chunk - 1) / w->chunk);
}

void reduce_walk_make(struct reduce_walk *w, const struct reduce_axis *axes, uint32_t n,
                      size_t pack)
{
    struct reduce_axis a[TENSOR_MAX_RANK];
    size_t x = 1, g = 1;
    uint32_t m = merged(axes, n, a);

    *w = {};
    w->n = m;
    w->ys = w->each = w->total = 1;
    w->columns = m > 0 && !a[m - 1].gone;
    for (uint32_t i = 0; i < m; i++) {
        *(a[i].gone ? &w->each : &w->ys) *= a[i].size;
        *(a[i].gone ? &w->n_gone : &w->n_kept) += 1;
        w->total *= a[i].size;
    }
    for (uint32_t i = m, kept = w->n_kept, gone = w->n_gone; i-- > 0;) {
        struct reduce_step s = { op_divisor_of(a[i].size), x, a[i].gone ? 0 : a[i].y, a[i].gone ? g : 0 };

        x *= a[i].size;
        g *= a[i].gone ? a[i].size : 1;
        w->all[i] = s;
        s.g = 0;
        (a[i].gone ? w->gone[--gone] : w->kept[--kept]) = s;
    }
    w->is_run = !w->columns && w->n_gone == 1;
    w->aligned = m > 0 && a[m - 1].size % pack == 0;
    divide_work(w, w->columns ? 1 : pack);
}
