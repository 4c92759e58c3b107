/* settle_balance.c - whether the lanes (micro-batches) of the job may move between tasks, and whether spare
 * lanes are possible. */
#include <stdio.h>

#include "base/buf.h"
#include "comm/pieces.h"
#include "conf/cluster.h"
#include "conf/job.h"
#include "daemon/settle.h"
#include "opts/phases.h"

enum { USEFUL_LANES = 4 /* for each replica: a move then changes the work of a replica by a quarter or less */ };

static bool has_local_sgd(const struct settled *s)
{
    for (uint32_t i = 0; i < s->conf->run.n_phases; i++)
        if (s->conf->run.phases[i].mode == TRAIN_LOCAL_SGD)
            return true;
    return false;
}

/* Returns why lanes are computed where they are whatever /elastic says; NULL: they may move. */
static const char *why_fixed(const struct settled *s)
{
    const struct conf *c = s->conf;

    if (s->cluster->is_local || s->cluster->world < 2)
        return "there is one task";
    if (s->devices[0].kind != DEVICE_CPU)
        return "replicas on GPUs have fixed lanes";
    if (c->has_ps)
        return "jobs with /parameter_server have fixed lanes";
    if (c->communication.code.kind != CODE_NONE)
        return "jobs with /communication/compression have fixed lanes";
    if (has_local_sgd(s))
        return "jobs with local SGD (/train/phases) have fixed lanes";
    if (s->lanes.tree.n_blocks > 0)
        return "jobs with /train/lane_tree have fixed lanes";
    if (s->replicas > PIECES_MAX_RANKS || s->lanes.n > PIECES_MAX_LANES)
        return "the group has too many replicas or lanes to plan a division";
    if (s->lanes.n < 2 * s->replicas)
        return "each replica computes one lane; /train/lanes of at least 4 times the replicas is useful";
    return NULL;
}

void settle_balance(struct settled *s)
{
    const char *why = why_fixed(s);

    /* the same on all tasks, also if the keys of /elastic differ */
    s->train.balances = why == NULL;
    s->balances = s->train.balances && s->conf->elastic.balance == CONF_BALANCE_AUTO;
    if (s->balances && s->lanes.n < USEFUL_LANES * s->replicas)
        snprintf(s->balance, sizeof(s->balance),
                 "auto, in large portions: %u lanes for each replica; %d or more are useful",
                 s->lanes.n / s->replicas, USEFUL_LANES);
    else if (s->balances)
        snprintf(s->balance, sizeof(s->balance), "auto");
    else
        snprintf(s->balance, sizeof(s->balance), "off: %s",
                 why != NULL ? why : "/elastic/balance is \"off\"");
}

void settle_spare(struct settled *s)
{
    const char *why =
        s->conf->elastic.spare == SPARE_OFF ? "/elastic/spare is \"off\"" : why_fixed(s);

    /* the same on all tasks, also if their replicas differ in number */
    s->train.spare = why == NULL ? s->conf->elastic.spare : SPARE_OFF;
    if (why == NULL && s->n_devices > 1)
        why = "this task has several replicas";
    if (why != NULL)
        snprintf(s->spare, sizeof(s->spare), "off: %s", why);
    else
        snprintf(s->spare, sizeof(s->spare), "%s, if each task is alone on its host%s",
                 s->train.spare == SPARE_AUTO ? "auto" : "always",
                 s->train.spare == SPARE_AUTO
                     ? " and gradients are not reduced while backward computes"
                     : "");
}

void settled_print_balance(const struct settled *s, struct buf *out)
{
    buf_str(out, ",\n  \"balance\": ");
    buf_json(out, s->balance);
    buf_str(out, ",\n  \"spare\": ");
    buf_json(out, s->spare);
}
