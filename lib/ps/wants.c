/* wants.c - see wants.h. */
#include "ps/wants.h"

#include <fnmatch.h>

#include "opts/ps.h"

const char *const ps_delayed_names[PS_STALENESS_MAX] = { "delayed.1", "delayed.2", "delayed.3",
                                                         "delayed.4" };

bool ps_wants(const struct ps_settings *s, const char *name, uint64_t rows, uint64_t width)
{
    if (ps_wants_dense(s))
        return true;
    switch (s->tables) {
    case PS_TABLES_NONE:
        return false;
    case PS_TABLES_AUTO:
        return rows * width * sizeof(float) >= s->min_shard_bytes;
    case PS_TABLES_LISTED:
        break;
    }
    for (uint32_t i = 0; i < s->n_patterns; i++)
        if (fnmatch(s->patterns[i], name, 0) == 0)
            return true;
    return false;
}
