/* piece_tree.c - see piece_tree.h. */
#include "comm/piece_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "comm/comm.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

static int allocate(struct piece_tree *t, uint32_t world, uint32_t n_nodes)
{
    size_t n = t->n_pieces;
    /* root_leaves and roots_of are as long as if every piece were a root */
    size_t words = 3 * n + 2 + n_nodes + 1;
    char *p = calloc(1, n * (sizeof(*t->pieces) + sizeof(*t->roots) + 1) +
                            words * sizeof(uint32_t) + world);

    if (p == NULL)
        return ERR_NOMEM;
    t->memory = p;
    t->pieces = (void *)p, p += n * sizeof(*t->pieces);
    t->roots = (void *)p, p += n * sizeof(*t->roots);
    t->leaves = (void *)p, p += (n + 1) * sizeof(*t->leaves);
    t->root_leaves = (void *)p, p += (n + 1) * sizeof(*t->root_leaves);
    t->roots_of = (void *)p, p += n * sizeof(*t->roots_of);
    t->node_roots = (void *)p, p += (n_nodes + 1) * sizeof(*t->node_roots);
    t->is_second = (void *)p;
    return 0;
}

static void copy_pieces(struct piece_tree *t, const struct group_piece *pieces)
{
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        t->pieces[i] = pieces[i];
        t->leaves[i + 1] = t->leaves[i] + pieces[i].n;
        for (uint32_t k = 0; k < i; k++)
            t->is_second[i] |= pieces[k].rank == pieces[i].rank;
    }
}

static bool is_of_one_node(const struct piece_tree *t, const uint32_t *node_of, uint32_t first,
                           uint32_t n)
{
    for (uint32_t i = first + 1; i < first + n; i++)
        if (node_of[t->pieces[i].rank] != node_of[t->pieces[first].rank])
            return false;
    return true;
}

/* Finds the roots in the subtree of the pieces [first, first + n). */
static void cut(struct piece_tree *t, const uint32_t *node_of, uint32_t first, uint32_t n)
{
    uint32_t middle;

    if (is_of_one_node(t, node_of, first, n)) {
        t->root_leaves[t->n_roots] = t->leaves[first];
        t->roots[t->n_roots++] =
            (struct piece_root){ node_of[t->pieces[first].rank], first, first + n };
        return;
    }
    middle = reduce_cut(t->leaves, first, n);
    CHECK(middle > first); /* the pieces are aligned */
    cut(t, node_of, first, middle - first);
    cut(t, node_of, middle, first + n - middle);
}

static void sort_by_node(struct piece_tree *t, uint32_t n_nodes)
{
    uint32_t n = 0;

    for (uint32_t node = 0; node < n_nodes; node++) {
        for (uint32_t i = 0; i < t->n_roots; i++)
            if (t->roots[i].node == node)
                t->roots_of[n++] = i;
        t->node_roots[node + 1] = n;
    }
}

int piece_tree_init(struct piece_tree *t, const struct group_piece *pieces, uint32_t n,
                    const uint32_t *node_of, uint32_t world, uint32_t n_nodes, struct err *err)
{
    uint64_t lanes = 0;
    int rc;

    *t = (struct piece_tree){ .n_pieces = n };
    if (n == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        lanes += pieces[i].n;
    if (lanes > COMM_MAX_LEAVES)
        return err_set(err, ERR_INPUT, "the pieces have %llu lanes; expected at most %d",
                       (unsigned long long)lanes, COMM_MAX_LEAVES);
    rc = pieces_check(pieces, n, (uint32_t)lanes, world, COMM_MAX_LEAVES, err);
    if (rc < 0)
        return rc;
    if (allocate(t, world, n_nodes) < 0)
        return err_set(err, ERR_NOMEM, "pieces: out of memory");
    copy_pieces(t, pieces);
    cut(t, node_of, 0, n);
    t->root_leaves[t->n_roots] = t->leaves[n];
    sort_by_node(t, n_nodes);
    return 0;
}

void piece_tree_fini(struct piece_tree *t)
{
    free(t->memory);
    *t = (struct piece_tree){ 0 };
}

bool piece_tree_has_two(const struct piece_tree *t, uint32_t rank)
{
    for (uint32_t i = 0; i < t->n_pieces; i++)
        if (t->pieces[i].rank == rank && t->is_second[i])
            return true;
    return false;
}

uint32_t piece_tree_n_roots(const struct piece_tree *t, uint32_t node)
{
    return t->node_roots[node + 1] - t->node_roots[node];
}

uint32_t piece_tree_root(const struct piece_tree *t, uint32_t node, uint32_t i)
{
    return t->roots_of[t->node_roots[node] + i];
}
