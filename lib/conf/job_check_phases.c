/* job_check_phases.c - see job_check_phases.h. Rules that need the cluster, the devices or the number
 * of steps are in lib/train/phases.c. */
#include "conf/job_check_phases.h"

#include <inttypes.h>

#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "conf/job_types.h"

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* Every phase but the last one has a last step, and these ascend. */
static int check_order(const struct json *doc, const struct conf *c, const cJSON *phases,
                       struct err *err)
{
    uint64_t before = 0;

    for (uint32_t i = 0; i < c->run.n_phases; i++) {
        const cJSON *phase = cJSON_GetArrayItem(phases, (int)i);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(phase, "until_step");
        uint64_t until = c->run.phases[i].until_step;

        if (i + 1 == c->run.n_phases)
            return until == 0 ? 0
                              : json_error(doc, value, err,
                                           "the last phase ends with the job; remove this key, or "
                                           "add a phase after step %" PRIu64, until);
        if (until == 0)
            return json_error(doc, value != NULL ? value : phase, err,
                              "another phase follows, so this one needs an \"until_step\" above "
                              "%" PRIu64, before);
        if (until <= before)
            return json_error(doc, value, err,
                              "expected a step above %" PRIu64 ", the end of the phase before, "
                              "found %" PRIu64, before, until);
        before = until;
    }
    return 0;
}

/* A group is an aligned block of lanes: a subtree of the tree along which lanes are added. */
static int check_groups(const struct json *doc, const struct conf *c, const cJSON *value,
                        uint32_t groups, struct err *err)
{
    uint32_t lanes = c->train.lanes;

    if (!is_power_of_two(groups))
        return json_error(doc, value, err, "expected a power of two, found %" PRIu32, groups);
    if (lanes == 0)
        return json_error(doc, value, err,
                          "local_sgd needs the number of lanes, of which each group has a part: "
                          "set /train/lanes to a power of two that is at least %" PRIu32, groups);
    if (lanes % groups != 0 || !is_power_of_two(lanes / groups))
        return json_error(doc, value, err,
                          "%" PRIu32 " groups cannot have equal aligned blocks of %" PRIu32
                          " lanes (/train/lanes): use a power of two of lanes that is at least "
                          "%" PRIu32, groups, lanes, groups);
    return 0;
}

static int check_local(const struct json *doc, const struct conf *c, const cJSON *phase,
                       const struct train_phase *p, struct err *err)
{
    const cJSON *mode = cJSON_GetObjectItemCaseSensitive(phase, "mode");
    int rc =
        check_groups(doc, c, cJSON_GetObjectItemCaseSensitive(phase, "groups"), p->groups, err);

    if (rc == 0 && p->sync_every == 0 && c->optimizer.schedule.type == OPTIM_PLATEAU)
        rc = json_error(doc, cJSON_GetObjectItemCaseSensitive(phase, "sync_every"), err,
                        "the rate of /optimizer/schedule/type \"plateau\" follows from evaluations, "
                        "but this rule must be a function of the step: write a number, or use "
                        "another schedule");
    if (rc == 0 && c->has_ps && (c->ps.tables != PS_TABLES_NONE || ps_wants_dense(&c->ps)))
        rc = json_error(doc, mode, err,
                        "groups of local_sgd have weights of their own, but the parameters of "
                        "/parameter_server are shared: set its \"tables\" to \"none\" and \"dense\" to \"workers\", or use \"sync\"");
    if (rc == 0 && c->run.precision == PLAN_FLOAT16)
        rc = json_error(doc, mode, err,
                        "/train/precision \"float16\" has one loss scale for all lanes, which "
                        "local_sgd does not support: use \"bfloat16\" or \"float32\", or \"sync\"");
    return rc;
}

/* Asynchronous phases: what /parameter_server must say. */
static int check_async(const struct json *doc, const struct conf *c, const cJSON *mode,
                       struct err *err)
{
    if (!c->has_ps || ps_bound_of(&c->ps) == 0)
        return json_error(doc, mode, err,
                          "\"async\" phases train with parameter servers within a bound: set /parameter_server/staleness "
                          "to 1 or more, staleness_kind to \"bounded\" and dense to \"ps\", or write \"sync\"");
    return 0;
}

/* The bound of /parameter_server and the phases that use it. */
static int check_bound(const struct json *doc, const struct conf *c, struct err *err)
{
    const cJSON *ps = cJSON_GetObjectItemCaseSensitive(json_root(doc), "parameter_server");
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(ps, "staleness_kind");
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(ps, "staleness");
    bool is_used = c->run.n_phases == 0;

    if (!c->has_ps)
        return 0;
    if (c->ps.staleness_kind == PS_STALENESS_EXACT)
        return c->ps.staleness <= PS_STALENESS_MAX
                   ? 0
                   : json_error(doc, value, err,
                                "expected 0 to %d with staleness_kind \"exact\", found %" PRIu32,
                                PS_STALENESS_MAX, c->ps.staleness);
    if (c->ps.staleness == 0)
        return json_error(
            doc, kind, err,
            "\"bounded\" needs a bound: set staleness to 1 to %d, or remove this key for synchronous steps",
            PS_BOUND_MAX);
    if (!ps_wants_dense(&c->ps))
        return json_error(
            doc, kind, err,
            "with \"bounded\" all parameters are on ps tasks: set dense to \"ps\", or write \"exact\"");
    for (uint32_t i = 0; i < c->run.n_phases; i++)
        is_used = is_used || c->run.phases[i].mode == TRAIN_ASYNC;
    if (!is_used)
        return json_error(doc, kind, err,
                          "no phase of /train/phases has mode \"async\", so \"bounded\" has no effect: add one, or "
                          "write \"exact\"");
    return 0;
}

int conf_check_phases(const struct json *doc, const struct conf *c, struct err *err)
{
    const cJSON *train = cJSON_GetObjectItemCaseSensitive(json_root(doc), "train");
    const cJSON *phases = cJSON_GetObjectItemCaseSensitive(train, "phases");
    int rc = check_order(doc, c, phases, err);

    for (uint32_t i = 0; rc == 0 && i < c->run.n_phases; i++)
        if (c->run.phases[i].mode == TRAIN_LOCAL_SGD)
            rc = check_local(doc, c, cJSON_GetArrayItem(phases, (int)i), &c->run.phases[i], err);
        else if (c->run.phases[i].mode == TRAIN_ASYNC)
            rc = check_async(
                doc, c,
                cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(phases, (int)i), "mode"), err);
    return rc == 0 ? check_bound(doc, c, err) : rc;
}
