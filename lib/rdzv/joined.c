/* joined.c - the connection data of the tasks: of this task, and of the others what they sent with
 * their last JOIN to this task. link_in.c stores the data; a view, a test of data paths and Status
 * need them. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct rdzv_joined {
    uint32_t world;
    struct group_member tasks[]; /* [world]; data_address, host_key and location are owned */
};

static void replace_string(const char **at, const char *s)
{
    free((char *)*at);
    *at = s != NULL ? strdup(s) : NULL;
    CHECK(s == NULL || *at != NULL);
}

void rdzv_joined_store(struct rdzv_joined *t, const struct group_member *m)
{
    struct group_member *own = &t->tasks[m->rank];

    own->incarnation = m->incarnation;
    own->n_devices = m->n_devices;
    own->n_servers = m->n_servers;
    replace_string(&own->data_address, m->data_address);
    replace_string(&own->host_key, m->host_key);
    replace_string(&own->location, m->location);
}

const struct group_member *rdzv_joined_get(const struct rdzv_joined *t, uint32_t rank)
{
    return &t->tasks[rank];
}

struct rdzv_joined *rdzv_joined_new(const struct wire_cluster *c)
{
    struct rdzv_joined *t = calloc(1, sizeof(*t) + c->world * sizeof(t->tasks[0]));

    CHECK(t != NULL);
    t->world = c->world;
    for (uint32_t i = 0; i < c->world; i++)
        t->tasks[i] = (struct group_member){ .rank = i, .name = c->tasks[i].name };
    return t;
}

void rdzv_joined_free(struct rdzv_joined *t)
{
    if (t == NULL)
        return;
    for (uint32_t i = 0; i < t->world; i++) {
        replace_string(&t->tasks[i].data_address, NULL);
        replace_string(&t->tasks[i].host_key, NULL);
        replace_string(&t->tasks[i].location, NULL);
    }
    free(t);
}
