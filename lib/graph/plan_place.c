/* plan_place.c - converts lifetimes of blocks to offsets.
 *
 * Blocks are placed in descending order of size. Each is placed into the smallest sufficient gap
 * between the placed blocks whose lifetimes overlap with its own, or after them. For networks this
 * comes within a few percent of the minimum, and the result depends only on the blocks. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

enum { ALIGN = 64 };

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

struct item {
    struct plan_block *block;
    uint32_t number; /* tie-breaker, which makes the result deterministic */
};

static int largest_first(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;

    if (a->block->bytes != b->block->bytes)
        return a->block->bytes > b->block->bytes ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* placed [n] is ordered by offset, and contains copies: each block is compared with all previous
 * ones. */
static size_t best_gap(const struct plan_block *placed, size_t n, const struct plan_block *b)
{
    size_t end = 0, best = SIZE_MAX, best_at = 0, i;

    for (i = 0; i < n; i++) {
        const struct plan_block *other = &placed[i];

        if (other->last < b->first || other->first > b->last)
            continue;
        if (other->offset > end && other->offset - end >= b->bytes && other->offset - end < best) {
            best = other->offset - end;
            best_at = end;
        }
        if (other->offset + other->bytes > end)
            end = other->offset + other->bytes;
    }
    return best != SIZE_MAX ? best_at : end;
}

static void insert(struct plan_block *placed, size_t n, const struct plan_block *b)
{
    size_t low = 0, high = n, middle;

    while (low < high) { /* finds the position after the blocks of the same offset */
        middle = low + (high - low) / 2;
        if (placed[middle].offset > b->offset)
            high = middle;
        else
            low = middle + 1;
    }
    memmove(placed + low + 1, placed + low, (n - low) * sizeof(*placed));
    placed[low] = *b;
}

int plan_place(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    struct item *items = arena_array(&mem, p->memory.blocks.n, sizeof(*items));
    struct plan_block *placed = arena_array(&mem, p->memory.blocks.n, sizeof(*placed));
    size_t i;

    if (items == NULL || placed == NULL) {
        arena_fini(&mem);
        return plan_no_memory(err);
    }
    for (i = 0; i < p->memory.blocks.n; i++) {
        p->memory.blocks.at[i].bytes = round_up(p->memory.blocks.at[i].bytes);
        items[i] = (struct item){ &p->memory.blocks.at[i], (uint32_t)i };
    }
    if (p->memory.blocks.n > 0)
        qsort(items, p->memory.blocks.n, sizeof(*items), largest_first);
    for (i = 0; i < p->memory.blocks.n; i++) {
        struct plan_block *b = items[i].block;

        b->offset = best_gap(placed, i, b);
        insert(placed, i, b);
        if (b->offset + b->bytes > p->memory.work_bytes)
            p->memory.work_bytes = b->offset + b->bytes;
    }
    arena_fini(&mem);
    for (i = 0; i < p->memory.binds[PLAN_WORK].n; i++)
        p->memory.binds[PLAN_WORK].at[i].offset =
            p->memory.blocks.at[p->memory.binds[PLAN_WORK].at[i].block].offset;
    return 0;
}
