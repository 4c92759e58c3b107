/* cluster_master.c - the variables of torchrun: rank 0 has an address, and every task its rank.
 *
 *   RANK, WORLD_SIZE          of all tasks
 *   MASTER_ADDR, MASTER_PORT  of rank 0, which collects the addresses of the others there
 *   LOCAL_RANK                number of a task on its host; absent: 0
 *   LOCAL_WORLD_SIZE          equal to WORLD_SIZE: all tasks are on this host (cluster_size.c)
 *
 * The agent of torchrun may itself listen at MASTER_PORT; then the next port is used. The control ports
 * follow: one for each task of a host. */
#include "conf/cluster_master.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "conf/cluster_types.h"

static const char *value_of(const struct cluster_opts *o, const char *name)
{
    const char *text = o->env(o->env_arg, name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

static bool read_number(const struct cluster_opts *o, const char *name, uint64_t max, uint64_t *out)
{
    const char *text = value_of(o, name);

    return text != NULL && text_u64(text, max, out);
}

bool cluster_master_port(const struct cluster_opts *o, uint16_t *out)
{
    const char *agent = value_of(o, "TORCHELASTIC_USE_AGENT_STORE");
    uint64_t port = 0;

    if (!read_number(o, "MASTER_PORT", UINT16_MAX, &port) || port == 0)
        return false;
    port += agent != NULL && strcmp(agent, "True") == 0;
    *out = (uint16_t)port;
    return port <= UINT16_MAX;
}

static int reject(const struct cluster_opts *o, const char *name, const char *expected,
                  struct err *err)
{
    return err_set(err, ERR_INPUT,
                   "%s='%.64s': expected %s; correct it, or give every task --hosts or TF_CONFIG",
                   name, value_of(o, name) != NULL ? value_of(o, name) : "", expected);
}

int cluster_master_find(const struct cluster_opts *o, struct cluster_master *out, bool *found,
                        struct err *err)
{
    uint64_t size = 0, rank = 0, local_rank = 0, local_size = 0, first;
    const char *host = value_of(o, "MASTER_ADDR");
    bool has_size = read_number(o, "WORLD_SIZE", UINT32_MAX, &size);

    *found = false;
    if (o->cluster_file != NULL || o->hosts != NULL || value_of(o, "TF_CONFIG") != NULL ||
        !has_size || size < 2 || host == NULL || value_of(o, "RANK") == NULL ||
        value_of(o, "MASTER_PORT") == NULL)
        return 0;
    if (read_number(o, "LOCAL_WORLD_SIZE", UINT32_MAX, &local_size) && local_size == size)
        return 0;
    if (size > CLUSTER_MASTER_TASKS)
        return reject(o, "WORLD_SIZE", "at most 4096 tasks", err);
    if (!read_number(o, "RANK", size - 1, &rank))
        return reject(o, "RANK", "a number below WORLD_SIZE", err);
    if (!cluster_master_port(o, &out->port))
        return reject(o, "MASTER_PORT", "a port from 1 to 65534", err);
    if (value_of(o, "LOCAL_RANK") != NULL && !read_number(o, "LOCAL_RANK", size - 1, &local_rank))
        return reject(o, "LOCAL_RANK", "a number below WORLD_SIZE", err);
    first = o->first_port != 0 ? o->first_port : out->port + 1U;
    if (first + local_rank > UINT16_MAX)
        return reject(o, "MASTER_PORT",
                      "a lower port, after which the control ports of the tasks of a host follow",
                      err);
    out->host = host;
    out->rank = (uint32_t)rank;
    out->size = (uint32_t)size;
    out->control_port = (uint16_t)(first + local_rank);
    *found = true;
    return 0;
}
