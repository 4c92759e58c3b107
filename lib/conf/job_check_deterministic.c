/* job_check_deterministic.c - see job_check_deterministic.h. GPUs of unlike models are refused where
 * the GPUs are known (daemon/settle_gpu.c). */
#include "conf/job_check_deterministic.h"

#include <inttypes.h>

#include "base/err.h"
#include "base/json.h"
#include "conf/job_types.h"

int conf_check_deterministic(const struct json *doc, const struct conf *c, struct err *err)
{
    const cJSON *communication = cJSON_GetObjectItemCaseSensitive(json_root(doc), "communication");
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(communication, "deterministic");

    if (!c->communication.deterministic)
        return 0;
    if (c->train.lanes == 0)
        return json_error(doc, value, err,
                          "found true, but without /train/lanes there are as many lanes as replicas, so that "
                          "results depend on their number: set /train/lanes, or write false");
    if (c->train.global_batch_size == 0)
        return json_error(doc, value, err,
                          "found true, but with /train/batch_size_per_replica the global batch depends on the "
                          "number of replicas: use /train/global_batch_size, or write false");
    for (uint32_t i = 0; i < c->run.n_phases; i++)
        if (c->run.phases[i].mode == TRAIN_ASYNC)
            return json_error(doc, value, err,
                              "found true, but the results of \"async\", the mode of /train/phases/%" PRIu32
                              ", depend on time: use \"sync\" there, or write false",
                              i);
    return 0;
}
