/* ctl_convert_describe.c - the description of the features for the job file. */
#include "daemon/ctl_convert.h"

void convert_describe(struct convert *c, const char *name, const char *dtype, const char *shape,
                      const char *more)
{
    buf_str(&c->features, c->features.len > 0 ? ",\n" : "");
    buf_str(&c->features, "  ");
    buf_json(&c->features, name);
    buf_printf(&c->features, ": { \"dtype\": \"%s\", \"shape\": %s%s }", dtype, shape, more);
}
