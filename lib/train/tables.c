/* tables.c - gradients of tables in a step (graph.h: read by Gather alone, of which a step reaches a
 * few rows; tensor/packed.h: how they lie).
 *
 * A gradient arena is [dense | values of marked rows ... nothing | statistics, control words]. Lanes
 * add up to the union of their marks. Replicas first join their marks, then each makes room in its
 * values for the rows of the others, so that the same row lies at the same place everywhere, and
 * then what is there is reduced like any other vector. So the sum of a row is made in the order of
 * a dense gradient, with its bits; only the zeros are not sent. */
#include "train/train_priv.h"

#include <string.h>

void tables_open(struct train *t)
{
    struct memory *m = &t->mem;

    m->tables = graph_tables(t->graph, &m->n_tables, &m->table_words);
    m->dense = graph_dense_floats(t->graph);
    if (t->opts->whole_gradients) {
        m->n_tables = 0;
        m->table_words = 0;
        m->dense = m->trained;
    }
}

void tables_add_arena(struct replica *r, uint32_t to, uint32_t from)
{
    const struct memory *m = &r->train->mem;
    float *sum = r->grads[to], *part = r->grads[from];

    tree_add_f32(sum, part, m->dense);
    packed_add(&r->rows[to], sum + m->dense, &r->rows[from], part + m->dense);
    tree_add_f32(sum + m->trained, part + m->trained, m->grads - m->trained);
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
        packed_add(&r->rows[0], tables_values(t, r->grads[0]), all, NULL);
    return rc;
}

int tables_reduce(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    const struct memory *m = &t->mem;
    float *grads = r->grads[0];
    size_t tail = m->grads - m->trained, end;
    int rc = m->n_tables > 0 ? join_marks(r, err) : 0;

    if (rc < 0)
        return rc;
    /* Statistics and control words move up behind the values for one vector without a gap. */
    end = m->dense + packed_floats(&r->rows[0]);
    memmove(grads + end, grads + m->trained, tail * sizeof(*grads));
    rc = comm_all_reduce(t->comm, r->local, grads, end + tail, TENSOR_F32, COMM_SUM, err);
    memmove(grads + m->trained, grads + end, tail * sizeof(*grads));
    return rc;
}
