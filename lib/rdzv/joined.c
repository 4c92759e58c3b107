/* joined.c - what the tasks sent with their last JOIN to this task: devices and addresses. link_in.c
 * stores the data; a view and a test of data paths need them. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct joined {
    uint64_t incarnation;
    uint32_t n_devices;
    char *data_address, *host_key; /* owned */
};

struct rdzv_joined {
    uint32_t world;
    struct joined tasks[]; /* [world] */
};

static void copy_string(char **at, const char *s)
{
    free(*at);
    *at = strdup(s);
    CHECK(*at != NULL);
}

void rdzv_joined_store(struct rdzv_joined *t, uint32_t rank, const Trainerd__V1__Join *m)
{
    struct joined *j = &t->tasks[rank];

    j->incarnation = m->incarnation;
    j->n_devices = m->n_devices;
    copy_string(&j->data_address, m->data_address);
    copy_string(&j->host_key, m->host_key);
}

struct rdzv_member rdzv_joined_get(const struct rdzv_joined *t, uint32_t rank)
{
    const struct joined *j = &t->tasks[rank];

    return (struct rdzv_member){ .rank = rank,
                                 .incarnation = j->incarnation,
                                 .n_devices = j->n_devices,
                                 .data_address = j->data_address,
                                 .host_key = j->host_key };
}

struct rdzv_joined *rdzv_joined_new(uint32_t world)
{
    struct rdzv_joined *t = calloc(1, sizeof(*t) + world * sizeof(t->tasks[0]));

    CHECK(t != NULL);
    t->world = world;
    return t;
}

void rdzv_joined_free(struct rdzv_joined *t)
{
    if (t == NULL)
        return;
    for (uint32_t i = 0; i < t->world; i++) {
        free(t->tasks[i].data_address);
        free(t->tasks[i].host_key);
    }
    free(t);
}
