/* cpu_tables.c - gradients of tables in a step: graph.h defines a table, tensor/packed.h the
 * layout.
 *
 * A gradient arena is [dense | values of marked rows, then nothing | statistics, control words].
 * Lanes add up to the union of their marks. Replicas first join their marks, then each makes room
 * in its values for the rows of the others, so that a row lies at the same place everywhere, and
 * then the arena is reduced like any other vector. So the sum of a row is made in the order of a
 * whole gradient, with its bits; only the zeros are not sent. (To send each replica's rows and add
 * them where they arrive would avoid the zeros of the others' rows, but the order of additions
 * would then be the order of arrival, or all rows of all replicas would go to every task.) */
#include "engine/cpu_tables.h"

#include <string.h>

#include "base/err.h"
#include "comm/comm.h"
#include "engine/lanes.h"

void tables_add(struct engine_replica *r, uint32_t to, uint32_t from, size_t begin, size_t end)
{
    const struct memory *m = &r->engine->memory;
    float *sum = r->arenas->grads[to], *part = r->arenas->grads[from];
    size_t dense = end < m->dense ? end : m->dense;

    if (begin < dense)
        tree_add_f32(sum + begin, part + begin, dense - begin);
    if (end <= m->dense)
        return;
    packed_add(&r->arenas->rows[to], sum + m->dense, &r->arenas->rows[from], part + m->dense);
    if (m->opts.n_remote > 0)
        packed_add(&r->arenas->remote[to], sum + m->remote_at, &r->arenas->remote[from],
                   part + m->remote_at);
    tree_add_f32(sum + m->trained, part + m->trained, end - m->trained);
}

/* Sums that the replica contributes: one of each piece, in the arenas 0 and 1. */
static uint32_t n_sums(const struct engine_replica *r)
{
    return r->n_second > 0 ? 2 : 1;
}

/* The marks of this replica become those of all replicas; rows that only others have are zero here.
 */
static int join_marks(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct packed *all = &r->arenas->all_rows;
    int rc;

    memcpy(all->marks, r->arenas->rows[0].marks, all->n_words * sizeof(*all->marks));
    for (size_t i = 0; r->n_second > 0 && i < all->n_words; i++)
        all->marks[i] |= r->arenas->rows[1].marks[i];
    rc = comm_all_reduce(e->group.comm, r->local, all->marks, all->n_words, TENSOR_I64, COMM_OR,
                         err);
    if (rc == 0 && !packed_is_valid(all))
        rc = err_set(err, ERR_PEER, "a task marked a row that its embedding table does not have");
    for (uint32_t s = 0; rc == 0 && s < n_sums(r); s++)
        packed_add(&r->arenas->rows[s], r->arenas->grads[s] + e->memory.dense, all, NULL);
    return rc;
}

int tables_compact(struct engine_replica *r, size_t *end, struct err *err)
{
    const struct memory *m = &r->engine->memory;
    size_t tail = m->grads - m->trained;
    int rc = m->opts.n_tables > 0 ? join_marks(r, err) : 0;

    if (rc < 0)
        return rc;
    *end = m->dense + packed_floats(&r->arenas->rows[0]) + tail;
    for (uint32_t s = 0; s < n_sums(r); s++) {
        float *grads = r->arenas->grads[s];

        memmove(grads + *end - tail, grads + m->trained, tail * sizeof(*grads));
    }
    return 0;
}

void tables_expand(struct engine_replica *r, size_t end)
{
    const struct memory *m = &r->engine->memory;
    size_t tail = m->grads - m->trained;

    /* also of the second sum, so that what is between its parameters stays zero */
    for (uint32_t s = 0; s < n_sums(r); s++)
        memmove(r->arenas->grads[s] + m->trained, r->arenas->grads[s] + end - tail,
                tail * sizeof(float));
}
