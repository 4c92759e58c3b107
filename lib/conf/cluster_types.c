#include "conf/cluster_types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"

static const char *const type_names[CLUSTER_TYPES] = {
    [CLUSTER_CHIEF] = "chief",
    [CLUSTER_WORKER] = "worker",
    [CLUSTER_PS] = "ps",
    [CLUSTER_EVALUATOR] = "evaluator",
};

const char *cluster_type_name(enum cluster_type t)
{
    CHECK(t < CLUSTER_TYPES);
    return type_names[t];
}

bool cluster_type_find(const char *name, enum cluster_type *out)
{
    for (int t = 0; t < CLUSTER_TYPES; t++) {
        if (strcmp(name, type_names[t]) == 0) {
            *out = (enum cluster_type)t;
            return true;
        }
    }
    return false;
}

const char *cluster_type_nearest(const char *name)
{
    return text_nearest(name, type_names, CLUSTER_TYPES);
}

const char *cluster_task_name(const struct cluster_task *t, char *out, size_t n)
{
    snprintf(out, n, "%s %" PRIu32, cluster_type_name(t->type), t->index);
    return out;
}
