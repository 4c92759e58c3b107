/* division.c - see division.h. */
#include "train/division.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/group_view.h"
#include "base/lane_tree.h"
#include "base/location.h"
#include "comm/comm.h"
#include "comm/pieces.h"
#include "comm/spare_lanes.h"
#include "engine/engine.h"
#include "train/train_types.h"

/* Returns the largest equal share of the lanes among `world` replicas. */
static uint32_t max_share(const struct train_opts *o, uint32_t world)
{
    uint32_t most = 1, *shares = calloc(world, sizeof(*shares));

    CHECK(shares != NULL);
    comm_share(&o->lane_tree, o->lanes, world, shares);
    for (uint32_t i = 0; i < world; i++)
        most = shares[i] > most ? shares[i] : most;
    free(shares);
    return most;
}

/* A fast replica can have twice the share of an equal division: one more arena of gradients. */
uint32_t division_max_piece(const struct train_opts *opts)
{
    uint32_t share = max_share(opts, opts->replicas), most = 1;

    while (most < 2 * share && most * 2 <= opts->lanes)
        most *= 2;
    return most;
}

void division_limit(const struct train_opts *opts, struct engine_opts *out)
{
    /* an equal share decreases with the size of the group: the smallest allowed group has the largest */
    uint32_t least = opts->min_replicas > 0 ? opts->min_replicas : opts->replicas;
    uint32_t share = max_share(opts, least), piece = division_max_piece(opts);

    out->max_lanes = share;
    out->max_piece = 0;
    if (!opts->balances)
        return;
    out->max_piece = piece > share ? piece : share;
    /* two pieces have less than twice the lanes of the larger one */
    out->max_lanes = 2 * out->max_piece - 1 < opts->lanes ? 2 * out->max_piece - 1 : opts->lanes;
}

int division_check(const struct train_opts *opts, const struct group_view *v, uint32_t world,
                   struct err *err)
{
    if (v->n_pieces == 0)
        return 0;
    if (!opts->balances || world < 2)
        return err_set(err, ERR_INPUT,
                       "the group divides the lanes into pieces; expected equal shares, since %s",
                       world < 2 ? "it has one replica" : "this job does not balance lanes");
    return pieces_check(v->pieces, v->n_pieces, opts->lanes, world, division_max_piece(opts), err);
}

static void place_share(const uint32_t *shares, struct engine_replica *out)
{
    out->first_lane = 0;
    for (uint32_t r = 0; r < out->rank; r++)
        out->first_lane += shares[r];
    out->n_lanes = shares[out->rank];
}

static void place_pieces(const struct group_view *v, struct engine_replica *out)
{
    out->n_lanes = 0;
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct group_piece *p = &v->pieces[i];

        if (p->rank != out->rank)
            continue;
        if (out->n_lanes == 0) {
            out->first_lane = p->first;
        } else {
            out->second_lane = p->first;
            out->n_second = p->n;
        }
        out->n_lanes += p->n;
    }
}

void division_place(const struct group_view *v, const uint32_t *shares, uint32_t rank,
                    struct engine_replica *out)
{
    out->rank = rank;
    out->second_lane = out->n_second = 0;
    if (v->n_pieces > 0)
        place_pieces(v, out);
    else
        place_share(shares, out);
}

enum { LISTED = 64 /* replicas; of more only the range is stated */ };

static bool in_one_rack(const struct group_member *a, const struct group_member *b)
{
    size_t n = location_rack(a->location);

    return n == location_rack(b->location) && memcmp(a->location, b->location, n) == 0;
}

static void list_shares(const struct group_view *v, const uint32_t *shares, char *out, size_t n)
{
    size_t at = 0;

    for (uint32_t m = 0; m < group_view_n_trainers(v); m++)
        for (uint32_t i = 0; i < v->members[m].n_devices && at < n; i++) {
            bool begins = i == 0 && m > 0 && !in_one_rack(&v->members[m - 1], &v->members[m]);

            at += (size_t)snprintf(out + at, n - at, "%s %u", begins ? " |" : "", *shares++);
        }
}

const char *division_describe(const struct lane_tree *tree, uint32_t lanes,
                              const struct group_view *v, char *out, size_t n)
{
    uint32_t world = group_view_n_ranks(v), least = lanes, most = 0, *shares;
    int at = snprintf(out, n, "%u lanes:", lanes);

    shares = calloc(world, sizeof(*shares));
    CHECK(shares != NULL && (size_t)at < n);
    comm_share_view(tree, lanes, v, shares);
    for (uint32_t r = 0; r < world; r++) {
        least = shares[r] < least ? shares[r] : least;
        most = shares[r] > most ? shares[r] : most;
    }
    if (world <= LISTED)
        list_shares(v, shares, out + at, n - (size_t)at);
    else
        snprintf(out + at, n - (size_t)at, " %u to %u for each of %u replicas", least, most, world);
    free(shares);
    return out;
}

void division_place_spare(const struct group_view *v, const uint32_t *shares, uint32_t world,
                          struct engine_replica *out)
{
    struct spare_lanes helped;

    out->n_block = out->helped_lane = out->n_helped = 0;
    if (world < 2)
        return;
    out->n_block = spare_lanes_of(v->pieces, v->n_pieces, shares, out->rank).n_block;
    helped = spare_lanes_of(v->pieces, v->n_pieces, shares, spare_helped(out->rank, world));
    out->helped_lane = helped.n_block > 0 ? helped.block : 0;
    out->n_helped = helped.n_block;
}
