/* named.h - an optimizer by its word in a job file, for tables that hold words. */
#ifndef TEST_OPTIM_NAMED_H
#define TEST_OPTIM_NAMED_H

#include <string.h>

#include "base/check.h"
#include "optim/optim.h"

static inline const struct optim_def *optim_named(const char *name)
{
    for (int type = 0; type < OPTIM_TYPES; type++)
        if (strcmp(optim_get((enum optim_type)type)->name, name) == 0)
            return optim_get((enum optim_type)type);
    CHECK(!"a known optimizer");
    return NULL;
}

#endif
