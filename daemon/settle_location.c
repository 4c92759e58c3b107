/* settle_location.c - where this task runs, and whether the group may order its ranks by location. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/location.h"
#include "conf/job.h"
#include "daemon/settle.h"

int settle_location(struct settled *s, struct err *err)
{
    const struct location_env env = { .own = getenv("TRAINERD_LOCATION"),
                                      .slurm = getenv("SLURM_TOPOLOGY_ADDR"),
                                      .pattern = getenv("SLURM_TOPOLOGY_ADDR_PATTERN") };

    if (s->conf != NULL && s->conf->communication.topology == CONF_TOPOLOGY_FLAT) {
        /* the other tasks then see a task without location, and all of them keep the order of the cluster */
        s->location[0] = '\0';
        s->location_from = "/communication/topology is \"flat\"";
        return 0;
    }
    return location_find(&env, s->location, &s->location_from, err);
}

void settled_print_location(const struct settled *s, struct buf *out)
{
    buf_str(out, ",\n  \"location\": {\"path\": ");
    buf_json(out, s->location);
    buf_str(out, ", \"from\": ");
    buf_json(out, s->location_from);
    buf_str(out, "}");
}
