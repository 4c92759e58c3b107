/* settle_lanes.c - the lanes (micro-batches) of a global batch, and which replica computes which.
 *
 * The gradients of all lanes are summed along one binary tree (base/lane_tree.h). A replica computes one subtree, so that
 * the bits are the same for any number of replicas (comm_share()). Subtrees of a plain tree are of equal size if each
 * replica has 1, 2, 4, ... lanes; otherwise some replicas wait for others. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/lane_tree.h"
#include "comm/comm.h"
#include "conf/cluster.h"
#include "conf/job.h"
#include "daemon/settle.h"

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

struct lane_tree settle_lane_tree(const struct conf *c)
{
    struct lane_tree tree = { .n_blocks = 0 };
    int rc = 0;

    if (c->train.n_lane_tree > 0)
        rc = lane_tree_make(c->train.lane_tree, c->train.n_lane_tree, &tree, NULL);
    CHECK(rc == 0); /* conf_read() has made it */
    return tree;
}

/* The lanes of each replica; the caller frees the array. */
static uint32_t *share(const struct lane_tree *tree, uint32_t lanes, uint32_t replicas)
{
    uint32_t *shares = calloc(replicas, sizeof(*shares));

    CHECK(shares != NULL);
    comm_share(tree, lanes, replicas, shares);
    return shares;
}

static uint32_t largest_share(const struct lane_tree *tree, uint32_t lanes, uint32_t replicas)
{
    uint32_t *shares, most = 0;

    if (tree->n_blocks == 0 && is_power_of_two(lanes / replicas))
        return lanes / replicas;
    shares = share(tree, lanes, replicas);
    for (uint32_t i = 0; i < replicas; i++)
        most = shares[i] > most ? shares[i] : most;
    free(shares);
    return most;
}

uint64_t settle_most_samples(const struct conf *c, uint64_t replicas)
{
    uint64_t lanes = c->train.lanes != 0 ? c->train.lanes : replicas,
             batch = c->train.global_batch_size;
    struct lane_tree tree = settle_lane_tree(c);

    if (replicas > COMM_MAX_RANKS || lanes % replicas != 0 || batch % lanes != 0)
        return 0;
    if (batch == 0)
        batch = c->train.batch_size_per_replica * replicas;
    return largest_share(&tree, (uint32_t)lanes, (uint32_t)replicas) * (batch / lanes);
}

/* Leaves s->uneven empty if all replicas have the same number of lanes. */
static void describe_uneven(struct settled *s)
{
    uint32_t each = s->lanes.n / s->replicas, power = 1;
    uint32_t most = largest_share(&s->lanes.tree, s->lanes.n, s->replicas);
    const uint32_t factors[] = { s->replicas, each };
    char text[LANE_TREE_TEXT_BYTES], advice[LANE_TREE_TEXT_BYTES + 64] = "";
    struct lane_tree tree;

    if (most == each)
        return;
    while (power * 2 < each)
        power *= 2;
    if (lane_tree_make(factors, COUNT_OF(factors), &tree, NULL) == 0)
        snprintf(advice, sizeof(advice), ", and so does \"lane_tree\": %s with %" PRIu32 " lanes",
                 lane_tree_text(&tree, s->lanes.n, text), s->lanes.n);
    snprintf(s->lanes.uneven, sizeof(s->lanes.uneven),
             "/train/lanes: %" PRIu32 " lanes on %" PRIu32 " replicas make unequal parts: a replica computes up to "
             "%" PRIu32 " of them in a step, %" PRIu32 " on average, so that the bits are the same for any number of "
             "replicas; %" PRIu32 " or %" PRIu32 " lanes make equal parts%s",
             s->lanes.n, s->replicas, most, each, power * s->replicas, 2 * power * s->replicas, advice);
}

/* Returns the key that requires a power of two of lanes; NULL: none does. */
static const char *needs_power_of_two(const struct conf *c)
{
    if (c->communication.code.kind != CODE_NONE)
        return "/communication/compression";
    for (uint32_t i = 0; i < c->run.n_phases; i++)
        if (c->run.phases[i].mode == TRAIN_LOCAL_SGD)
            return "\"local_sgd\" (/train/phases)";
    return NULL;
}

/* The replicas cannot have equal numbers of lanes. Says what the job can have, with its other keys. */
static int refuse_lanes(const struct settled *s, struct err *err)
{
    const char *key = needs_power_of_two(s->conf);
    uint32_t below = 1;
    char who[96];

    snprintf(who, sizeof(who), "%" PRIu32 " replicas (%u tasks with %u devices each)", s->replicas,
             s->cluster->world, s->n_devices);
    while (below * 2 <= s->replicas)
        below *= 2;
    if (key != NULL && below != s->replicas)
        return err_set(err, ERR_INPUT,
                       "/train/lanes: %s needs a power of two of lanes, which %s cannot share evenly: expected a "
                       "power of two of replicas, such as %" PRIu32 " or %" PRIu32 "; use so many tasks, or remove "
                       "that key and choose a multiple of %" PRIu32 " lanes",
                       key, who, below, 2 * below, s->replicas);
    if (key != NULL)
        return err_set(err, ERR_INPUT,
                       "/train/lanes: %u lanes cannot be shared evenly by %s: choose a power of two that is at "
                       "least %" PRIu32 ", or other --devices",
                       s->lanes.n, who, s->replicas);
    return err_set(err, ERR_INPUT,
                   "/train/lanes: %u lanes cannot be shared evenly by %s: choose a multiple of %" PRIu32
                   ", or other --devices",
                   s->lanes.n, who, s->replicas);
}

int settle_lanes(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    uint64_t batch, replicas = (uint64_t)s->cluster->world * s->n_devices;

    if (replicas > COMM_MAX_RANKS)
        return err_set(
            err, ERR_INPUT,
            "%" PRIu64
            " replicas (%u tasks with %u devices each) are above %d, the most there can be",
            replicas, s->cluster->world, s->n_devices, COMM_MAX_RANKS);
    s->replicas = (uint32_t)replicas;
    s->lanes.n = c->train.lanes != 0 ? c->train.lanes : s->replicas;
    s->lanes.from = c->train.lanes != 0 ? "job" : "replicas of the full cluster";
    s->lanes.tree = settle_lane_tree(c);
    batch = c->train.global_batch_size;
    if (batch == 0)
        batch = (uint64_t)c->train.batch_size_per_replica * s->replicas;
    if (batch > UINT32_MAX)
        return err_set(err, ERR_INPUT,
                       "/train/batch_size_per_replica: %u samples on %u replicas are too many",
                       c->train.batch_size_per_replica, s->replicas);
    s->lanes.global_batch = (uint32_t)batch;
    if (s->lanes.n % s->replicas != 0)
        return refuse_lanes(s, err);
    if (s->lanes.global_batch % s->lanes.n != 0)
        return err_set(err, ERR_INPUT,
                       "/train/global_batch_size: %u samples cannot be cut into %u lanes (%s): choose a "
                       "multiple of %u",
                       s->lanes.global_batch, s->lanes.n, s->lanes.from, s->lanes.n);
    describe_uneven(s);
    return 0;
}

const char *settled_order_unknown(const struct settled *s)
{
    if (s->location[0] == '\0' || s->cluster->is_local || s->cluster->world == 1)
        return NULL;
    return "this task has a location: lanes are divided in the order of locations if all training tasks have one, else in "
           "the order of the cluster; the log of each generation states the order (\"order\")";
}

void settled_task_lanes(const struct settled *s, uint32_t rank, uint32_t *first, uint32_t *n)
{
    uint32_t *shares = share(&s->lanes.tree, s->lanes.n, s->replicas);

    *first = *n = 0;
    for (uint32_t i = 0; i < rank * s->n_devices; i++)
        *first += shares[i];
    for (uint32_t i = 0; i < s->n_devices; i++)
        *n += shares[rank * s->n_devices + i];
    free(shares);
}

/* The lanes of this task, or why they are not known. */
static void print_own(const struct settled *s, struct buf *out)
{
    const char *unknown = settled_order_unknown(s);
    uint32_t rank = s->cluster->self->rank, first, n;

    if (rank == CLUSTER_NO_RANK)
        return;
    if (unknown != NULL) {
        buf_str(out, ", \"mine\": null, \"unknown\": ");
        buf_json(out, unknown);
        return;
    }
    settled_task_lanes(s, rank, &first, &n);
    buf_printf(out, ", \"mine\": [%u, %u]", first, first + n - 1);
}

void settled_print_lanes(const struct settled *s, struct buf *out)
{
    char text[LANE_TREE_TEXT_BYTES];

    buf_printf(out, ",\n  \"lanes\": {\"count\": %u, \"from\": \"%s\", \"tree\": %s, \"per_replica\": %u, "
                    "\"samples_per_lane\": %u", s->lanes.n, s->lanes.from,
               lane_tree_text(&s->lanes.tree, s->lanes.n, text), s->lanes.n / s->replicas,
               s->lanes.global_batch / s->lanes.n);
    print_own(s, out);
    if (s->lanes.uneven[0] != '\0') {
        buf_str(out, ", \"uneven\": ");
        buf_json(out, s->lanes.uneven);
    }
    buf_printf(out,
               "},\n  \"global_batch_size\": %u,\n  \"learning_rate\": ", s->lanes.global_batch);
    buf_f64(out, s->learning_rate);
}
