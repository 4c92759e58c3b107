/* job_check_compression.c - see job_check_compression.h. Rules that need the devices are in
 * lib/train/coding.c. */
#include "conf/job_check_compression.h"

#include <inttypes.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"
#include "conf/job_types.h"

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static int check_groups(const struct json *doc, const struct conf *c, const cJSON *value,
                        struct err *err)
{
    uint32_t groups = c->communication.code.groups, lanes = c->train.lanes;

    if (!is_power_of_two(groups))
        return json_error(doc, value, err, "expected a power of two, found %" PRIu32, groups);
    if (lanes == 0)
        return json_error(doc, value, err,
                          "compression needs the number of lanes, of which each group has a part: set "
                          "/train/lanes to a power of two that is at least %" PRIu32, groups);
    if (!is_power_of_two(lanes) || groups > lanes)
        return json_error(doc, value, err,
                          "%" PRIu32 " groups cannot have equal aligned blocks of %" PRIu32
                          " lanes (/train/lanes): use a power of two of lanes that is at least %" PRIu32,
                          groups, lanes, groups);
    return 0;
}

int conf_check_compression(const struct json *doc, const struct conf *c, struct err *err)
{
    const cJSON *communication = cJSON_GetObjectItemCaseSensitive(json_root(doc), "communication");
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(communication, "compression");
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(object, "code");
    int rc;

    if (c->communication.code.kind == CODE_NONE)
        return 0;
    rc = check_groups(doc, c, cJSON_GetObjectItemCaseSensitive(object, "groups"), err);
    if (rc == 0 && c->has_ps && ps_wants_dense(&c->ps))
        rc = json_error(doc, code, err,
                        "compression concerns the all-reduce between workers, but /parameter_server/dense is "
                        "\"ps\": use \"workers\" there, or \"none\" here");
    if (rc == 0 && c->has_ps && code_keeps_residuals(c->communication.code.kind))
        rc = json_error(doc, code, err,
                        "\"%s\" returns to a copy of the state after a failure, and /parameter_server has rows that "
                        "cannot return: remove that section, or use a code without residuals, such as \"int8\", here",
                        code->valuestring);
    for (uint32_t i = 0; rc == 0 && i < c->run.n_phases; i++)
        if (c->run.phases[i].mode == TRAIN_LOCAL_SGD)
            rc = json_error(doc, code, err,
                            "compression does not support \"local_sgd\", the mode of /train/phases/%" PRIu32
                            ": remove that phase, or use \"none\" here", i);
    return rc;
}
