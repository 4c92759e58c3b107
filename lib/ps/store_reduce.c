/* store_reduce.c - the pending gradient: the sum of the parts of all ranks.
 *
 * The rows of the parts of a table are merged by a binary tree that is also the tree of the
 * additions: its leaves are the parts, and a node knows the lowest row that is left in its subtree.
 * Each output row descends from the root into the subtrees that have it. So a row is read once from
 * each contributor and written once. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clones.h"
#include "base/err.h"
#include "base/prefetch.h"
#include "ps/store_priv.h"

struct node {
    uint64_t row;               /* lowest row that is left */
    bool is_empty;              /* no row is left */
    struct node *left, *right;  /* NULL: a leaf */
    float *sum;                 /* inner: [width] memory for a sum */
    const uint64_t *rows, *end; /* leaf: the rows that are left */
    const float *values;        /* leaf: of the first row that is left */
};

/* ---- validation ---- */

/* Returns the largest multiple of a power of two that begins the smallest aligned subtree with all
 * leaves of the part; *n_leaves: leaves of that subtree. */
static uint64_t subtree_of(const struct ps_part *p, uint64_t *n_leaves)
{
    uint64_t last = (uint64_t)p->first_leaf + p->n_leaves - 1, size = 1;

    while (p->first_leaf / size != last / size)
        size *= 2;
    *n_leaves = size;
    return p->first_leaf / size * size;
}

static int check_order(const struct ps_store *s, const struct ps_part *parts, uint32_t n,
                       struct err *err)
{
    uint64_t end = 0; /* end of the subtree of the previous part of the table */

    for (uint32_t i = 0; i < n; i++) {
        const struct ps_part *p = &parts[i];
        uint64_t first, n_leaves;

        if (p->table >= s->n_tables)
            return err_set(err, ERR_PEER,
                           "parameter server: rank %" PRIu32 ": table %" PRIu32 " of %" PRIu32,
                           p->rank, p->table, s->n_tables);
        CHECK(i == 0 || parts[i - 1].table <= p->table);
        if (p->n_leaves == 0 || p->n_leaves > PS_MAX_LEAVES ||
            p->first_leaf > PS_MAX_LEAVES - p->n_leaves)
            return err_set(err, ERR_PEER,
                           "parameter server: rank %" PRIu32 ": %" PRIu32
                           " lanes from lane %" PRIu32 " exceed the limit of %d",
                           p->rank, p->n_leaves, p->first_leaf, PS_MAX_LEAVES);
        if (i > 0 && parts[i - 1].table != p->table)
            end = 0;
        first = subtree_of(p, &n_leaves);
        if (first < end)
            return err_set(err, ERR_PEER,
                           "parameter server: table '%s': the lanes of rank %" PRIu32
                           " are not a subtree beside those of the rank before",
                           s->tables[p->table].is.name, p->rank);
        end = first + n_leaves;
    }
    return 0;
}

static int check_rows(const struct ps_store *s, const struct ps_part *p, struct err *err)
{
    const struct store_table *t = &s->tables[p->table];

    for (uint64_t i = 0; i < p->n; i++) {
        if (i > 0 && p->rows[i] <= p->rows[i - 1])
            return err_set(err, ERR_PEER,
                           "parameter server: rank %" PRIu32 ", table '%s': row %" PRIu64
                           " follows row %" PRIu64 "; expected ascending rows",
                           p->rank, t->is.name, p->rows[i], p->rows[i - 1]);
        if (!store_has_row(s, t, p->rows[i]))
            return err_wrap(err, store_bad_row(t, p->rows[i], err), "rank %" PRIu32, p->rank);
    }
    return 0;
}

/* ---- memory ---- */

/* Replaces the memory to which the pointer at `at` points, unless it has room for n elements. */
static int make_room(void *at, uint64_t *room, uint64_t n, size_t bytes, struct err *err)
{
    void *memory;

    if (n <= *room)
        return 0;
    n += n / 4; /* so that a step with a few more rows finds room */
    memcpy(&memory, at, sizeof(memory));
    free(memory);
    memory = n <= SIZE_MAX / bytes ? malloc(n * bytes) : NULL;
    memcpy(at, &memory, sizeof(memory));
    *room = memory != NULL ? n : 0;
    return memory != NULL ? 0 : err_set(err, ERR_NOMEM, "parameter server: no gradient memory");
}

/* Makes room for the merge of n parts of a table with `rows` rows in total. */
static int make_memory(struct ps_store *s, struct store_table *t, uint32_t n, uint64_t rows,
                       struct err *err)
{
    struct pending *p = &t->pending;
    uint64_t width = t->is.width;
    int rc;

    if (rows > UINT32_MAX / 2) /* of `order` */
        return err_set(err, ERR_NOMEM,
                       "parameter server: table '%s': the gradient has %" PRIu64 " rows",
                       t->is.name, rows);
    rc = make_room(&s->nodes, &s->room_nodes, 2 * (uint64_t)n, sizeof(*s->nodes), err);
    if (rc == 0)
        rc = make_room(&s->sums, &s->room_sums, n * width, sizeof(*s->sums), err);
    if (rc == 0)
        rc = make_room(&s->order, &s->room_order, rows, sizeof(*s->order), err);
    if (rc == 0)
        rc = make_room(&p->rows, &p->room_rows, rows, sizeof(*p->rows), err);
    if (rc == 0)
        rc = make_room(&p->values, &p->room_values, rows * width, sizeof(*p->values), err);
    return rc;
}

/* ---- the sum ---- */

CLONES static void add(float *restrict out, const float *restrict a, const float *restrict b,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

/* Sets the lowest row of an inner node. */
static void find_lowest(struct node *x)
{
    const struct node *l = x->left, *r = x->right;

    x->is_empty = l->is_empty && r->is_empty;
    x->row = r->is_empty || (!l->is_empty && l->row < r->row) ? l->row : r->row;
}

static bool has_row(const struct node *x, uint64_t row)
{
    return x->row == row && !x->is_empty;
}

/* Builds the tree over parts [0, n), n > 0, at `to`. Returns the end of its nodes. */
static struct node *build(struct node *to, const struct ps_part *const *parts, uint32_t n,
                          float **sums, size_t width)
{
    uint32_t first = parts[0]->first_leaf, last = parts[n - 1]->first_leaf, left = 1;
    struct node *next = to + 1;
    uint64_t cut;

    if (n == 1) {
        *to = (struct node){ .row = parts[0]->rows[0],
                             .rows = parts[0]->rows,
                             .end = parts[0]->rows + parts[0]->n,
                             .values = parts[0]->values };
        return next;
    }
    /* The highest bit in which the leaves differ divides the smallest subtree with all of them. */
    cut = (uint64_t)1 << (31 - __builtin_clz(first ^ last));
    cut = last / cut * cut;
    while (parts[left]->first_leaf < cut)
        left++;
    *to = (struct node){ .sum = *sums };
    *sums += width;
    to->left = next;
    next = build(next, parts, left, sums, width);
    to->right = next;
    next = build(next, parts + left, n - left, sums, width);
    find_lowest(to);
    return next;
}

/* Removes the lowest row of a subtree. Returns its sum over the subtree. */
static const float *take(struct node *x, size_t width)
{
    struct node *l = x->left, *r = x->right;
    const float *a = NULL, *b = NULL;
    uint64_t row = x->row;

    if (l == NULL) {
        a = x->values;
        x->values += width;
        /* Of eight parts the processor does not detect the streams. The address may be beyond the values. */
        prefetch_row((const void *)((uintptr_t)a + 2 * width * sizeof(*a)), width * sizeof(*a));
        x->is_empty = ++x->rows == x->end;
        if (!x->is_empty)
            x->row = *x->rows;
        return a;
    }
    if (has_row(l, row))
        a = take(l, width);
    if (has_row(r, row))
        b = take(r, width);
    find_lowest(x);
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    add(x->sum, a, b, width);
    return x->sum;
}

static void copy_part(struct pending *p, const struct ps_part *from, size_t width)
{
    memcpy(p->rows, from->rows, from->n * sizeof(*p->rows));
    memcpy(p->values, from->values, from->n * width * sizeof(*p->values));
    p->n = from->n;
}

static void merge(struct pending *p, struct node *root, size_t width)
{
    float *out = p->values;

    p->n = 0;
    while (!root->is_empty) {
        const float *sum;

        p->rows[p->n++] = root->row;
        root->sum = out;
        sum = take(root, width);
        if (sum != out) /* one contributor, or one half of the tree */
            memcpy(out, sum, width * sizeof(*out));
        out += width;
    }
}

/* Sums the n parts of one table. */
static int reduce_table(struct ps_store *s, const struct ps_part *parts, uint32_t n,
                        struct err *err)
{
    struct store_table *t = &s->tables[parts[0].table];
    float *sums;
    uint64_t rows = 0;
    uint32_t m = 0;
    int rc = make_room(&s->with_rows, &s->room_parts, n, sizeof(*s->with_rows), err);

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        rc = check_rows(s, &parts[i], err);
        rows += parts[i].n;
        if (rc == 0 && parts[i].n > 0)
            s->with_rows[m++] = &parts[i];
    }
    if (rc == 0)
        rc = make_memory(s, t, m, rows, err);
    if (rc < 0 || m == 0)
        return rc;
    if (m == 1) {
        copy_part(&t->pending, s->with_rows[0], t->is.width);
    } else {
        sums = s->sums;
        (void)build(s->nodes, s->with_rows, m, &sums, t->is.width);
        merge(&t->pending, s->nodes, t->is.width);
    }
    return store_is_dynamic(t) ? store_dynamic_reserve(s, t, err) : 0;
}

static void clear_pending(struct ps_store *s)
{
    for (uint32_t i = 0; i < s->n_tables; i++)
        s->tables[i].pending.n = 0;
    s->is_pending = false;
}

int ps_store_reduce(struct ps_store *s, const struct ps_part *parts, uint32_t n_parts,
                    struct err *err)
{
    int rc = check_order(s, parts, n_parts, err);

    CHECK(!s->is_pending);
    clear_pending(s);
    for (uint32_t i = 0, n; rc == 0 && i < n_parts; i += n) {
        n = 1;
        while (i + n < n_parts && parts[i + n].table == parts[i].table)
            n++;
        rc = reduce_table(s, &parts[i], n, err);
    }
    if (rc < 0)
        clear_pending(s);
    else
        s->is_pending = true;
    return rc;
}

bool ps_store_is_pending(const struct ps_store *s)
{
    return s->is_pending;
}

void ps_store_discard(struct ps_store *s)
{
    clear_pending(s);
}
