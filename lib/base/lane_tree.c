/* lane_tree.c - see lane_tree.h. */
#include "base/lane_tree.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/check.h"
#include "base/err.h"

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* Returns the largest power of two below n; n > 1. */
static uint32_t half_of(uint32_t n)
{
    uint32_t half = 1;

    while (half * 2 < n)
        half *= 2;
    return half;
}

/* Adds a level at the top: blocks of so many lanes, each a plain tree of `factor` smaller blocks. */
static void add_level(struct lane_tree *t, uint32_t factor, uint64_t lanes)
{
    for (uint32_t i = t->n_blocks++; i > 0; i--)
        t->blocks[i] = t->blocks[i - 1];
    t->blocks[0] = (uint32_t)lanes;
    t->block_leaves = (t->block_leaves > 0 ? t->block_leaves : 1) * 2 * half_of(factor);
}

int lane_tree_make(const uint32_t *factors, uint32_t n, struct lane_tree *out, struct err *err)
{
    struct lane_tree t = { .n_blocks = 0 };
    uint64_t lanes = 1, factor = 1, leaves;

    CHECK(n >= 1 && n <= LANE_TREE_FACTORS);
    for (uint32_t i = n; i-- > 0;) {
        if (factors[i] == 0)
            return err_set(err, ERR_INPUT, "factor %" PRIu32 " is 0; expected 1 or more", i);
        if (factors[i] == 1)
            continue;
        /* a plain tree of 2^k subtrees of equal trees is a plain tree */
        if (!is_power_of_two((uint32_t)factor)) {
            add_level(&t, (uint32_t)factor, lanes);
            factor = 1;
        }
        factor *= factors[i];
        lanes *= factors[i];
        if (lanes > LANE_TREE_LEAVES)
            return err_set(err, ERR_INPUT,
                           "the factors make %" PRIu64 " lanes or more; expected at most %d", lanes,
                           LANE_TREE_LEAVES);
        leaves = factor * (t.n_blocks > 0 ? t.block_leaves : 1);
        if (leaves > LANE_TREE_LEAVES)
            return err_set(err, ERR_INPUT,
                           "the factors make a part of a plain binary tree of %" PRIu64 " leaves or more; expected at most "
                           "%d: use fewer factors that are no powers of two", leaves, LANE_TREE_LEAVES);
    }
    *out = t;
    return 0;
}

const char *lane_tree_text(const struct lane_tree *t, uint32_t lanes,
                           char out[LANE_TREE_TEXT_BYTES])
{
    size_t at = 0;

    for (uint32_t i = 0; t != NULL && i < t->n_blocks; lanes = t->blocks[i++])
        at += (size_t)snprintf(out + at, LANE_TREE_TEXT_BYTES - at, "%s%" PRIu32,
                               i == 0 ? "[" : ", ", lanes / t->blocks[i]);
    snprintf(out + at, LANE_TREE_TEXT_BYTES - at, "%s%" PRIu32 "]", at == 0 ? "[" : ", ", lanes);
    return out;
}

uint32_t lane_tree_left(const struct lane_tree *t, uint32_t lanes)
{
    for (uint32_t i = 0; t != NULL && i < t->n_blocks; i++)
        if (t->blocks[i] < lanes)
            return half_of(lanes / t->blocks[i]) * t->blocks[i];
    return half_of(lanes);
}

/* Every step down to a right half adds the leaves of the left half, which are as many. */
uint32_t lane_tree_leaf(const struct lane_tree *t, uint32_t lane)
{
    uint32_t lanes, leaves, leaf;

    if (t == NULL || t->n_blocks == 0)
        return lane;
    lanes = t->blocks[0];
    leaves = t->block_leaves;
    leaf = lane / lanes * leaves;
    for (lane %= lanes; lanes > 1;) {
        uint32_t left = lane_tree_left(t, lanes);

        leaves /= 2;
        if (lane >= left) {
            leaf += leaves;
            lane -= left;
            left = lanes - left;
        }
        lanes = left;
    }
    return leaf;
}

void lane_tree_leaves(const struct lane_tree *t, const uint32_t *lanes, uint32_t n,
                      uint32_t *leaves)
{
    uint32_t lane = 0, begin = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t end;

        lane += lanes[i];
        end = lane_tree_leaf(t, lane);
        leaves[i] = end - begin;
        begin = end;
    }
}
