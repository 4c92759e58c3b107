/* tables.c - gradients of tables in a step: graph.h says what a table is, tensor/packed.h how they lie.
 *
 * A gradient arena is [dense | values of marked rows, then nothing | statistics, control words].
 * Lanes add up to the union of their marks. Replicas first join their marks, then each makes room in
 * its values for the rows of the others, so that the same row lies at the same place everywhere,
 * and then what is there is reduced like any other vector. So the sum of a row is made in the order
 * of a whole gradient, with its bits; only the zeros are not sent. (To send each replica's rows and
 * add them where they arrive would spare the zeros of the others' rows, but the order of additions
 * would then be the order of arrival, or all rows of all replicas would go to everybody.)
 *
 * On GPUs the sums are NCCL's, of as many numbers in every step, from calls that were captured: gradients are
 * whole there, and behind them comes a number for each row, above 0 if a lane read it (gpu.c). */
#include "train/train_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void tables_open(struct train *t)
{
    struct memory *m = &t->mem;

    m->tables = graph_tables(t->graph, &m->n_tables, &m->table_words);
    m->dense = graph_dense_floats(t->graph);
    if (t->opts->whole_gradients || train_on_gpus(t)) { /* gpu.h: there they are whole, with marks beside */
        m->n_tables = 0;
        m->table_words = 0;
        m->dense = m->trained;
    }
}

void tables_tell(const struct train *t)
{
    uint32_t n, resting = update_resting_tables(t);
    size_t words;
    const struct packed_table *tables = graph_tables(t->graph, &n, &words);
    bool packed = t->mem.n_tables > 0;
    uint64_t rows = 0;
    char text[320];
    struct train_event e = { .kind = TRAIN_NOTE, .text = text };

    if (n == 0 || (!packed && !train_on_gpus(t)))
        return;
    for (uint32_t i = 0; i < n; i++)
        rows += tables[i].rows;
    if (resting == n)
        snprintf(text, sizeof(text), "%" PRIu32 " embedding tables with %" PRIu64 " rows: a step %s rows that it "
                 "read", n, rows, packed ? "reduces and updates the" : "reduces whole gradients, and updates the");
    else
        snprintf(text, sizeof(text),
                 "%" PRIu32 " embedding tables with %" PRIu64 " rows: a step reduces %s, and updates every row of "
                 "%" PRIu32 " tables, since %s moves rows without a gradient too (optimizer.groups: lazy_rows)",
                 n, rows, packed ? "the rows that it read" : "whole gradients", n - resting,
                 t->opts->optimizer->name);
    train_tell(t, &e);
}

void tables_add(struct replica *r, uint32_t to, uint32_t from, size_t begin, size_t end)
{
    const struct memory *m = &r->train->mem;
    float *sum = r->grads[to], *part = r->grads[from];
    size_t dense = end < m->dense ? end : m->dense;

    if (begin < dense)
        tree_add_f32(sum + begin, part + begin, dense - begin);
    if (end <= m->dense)
        return;
    packed_add(&r->rows[to], sum + m->dense, &r->rows[from], part + m->dense);
    tree_add_f32(sum + m->trained, part + m->trained, end - m->trained);
}

/* Our marks become those of all replicas; rows that only others have are zero here. */
static int join_marks(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct packed *all = &r->all_rows;
    int rc;

    memcpy(all->marks, r->rows[0].marks, all->n_words * sizeof(*all->marks));
    rc = comm_all_reduce(t->comm, r->local, all->marks, all->n_words, TENSOR_I64, COMM_OR, err);
    if (rc == 0)
        packed_add(&r->rows[0], r->grads[0] + t->mem.dense, all, NULL);
    return rc;
}

int tables_close_up(struct replica *r, size_t *end, struct err *err)
{
    const struct memory *m = &r->train->mem;
    float *grads = r->grads[0];
    size_t tail = m->grads - m->trained;
    int rc = m->n_tables > 0 ? join_marks(r, err) : 0;

    if (rc < 0)
        return rc;
    *end = m->dense + packed_floats(&r->rows[0]) + tail;
    memmove(grads + *end - tail, grads + m->trained, tail * sizeof(*grads));
    return 0;
}

void tables_open_up(struct replica *r, size_t end)
{
    const struct memory *m = &r->train->mem;
    size_t tail = m->grads - m->trained;

    memmove(r->grads[0] + m->trained, r->grads[0] + end - tail, tail * sizeof(float));
}
