#include "daemon/ctl_group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/thread.h"
#include "proto/trainerd.pb-c.h"
#include "rdzv/rdzv.h"

enum { THREADS = 32 };

/* ---- one task ---- */

int ctl_task_open(struct ctl_task *t, const struct security *security, const char *name,
                  const char *address, struct err *err)
{
    int rc = rdzv_caller_open(address, security->tls, security->token, &t->caller, err);

    if (rc < 0)
        return rc;
    t->name = strdup(name);
    t->address = strdup(address);
    CHECK(t->name != NULL && t->address != NULL);
    return 0;
}

void ctl_task_close(struct ctl_task *t)
{
    rdzv_caller_close(t->caller);
    free(t->name);
    free(t->address);
    *t = (struct ctl_task){ 0 };
}

int ctl_task_call(struct ctl_task *t, const char *method, const ProtobufCMessage *request,
                  const ProtobufCMessageDescriptor *reply, uint64_t times_ns[2], void **out,
                  struct err *err)
{
    size_t n_request = request != NULL ? protobuf_c_message_get_packed_size(request) : 0, n = 0;
    uint8_t *packed = malloc(n_request + 1);
    void *bytes = NULL;
    int rc;

    CHECK(packed != NULL);
    if (request != NULL)
        protobuf_c_message_pack(request, packed);
    rc = rdzv_caller_call(t->caller, method, packed, n_request, CTL_CALL_MS, &bytes, &n, times_ns,
                          err);
    free(packed);
    if (rc < 0)
        return rc;
    *out = protobuf_c_message_unpack(reply, NULL, n, bytes);
    free(bytes);
    return *out != NULL
               ? 0
               : err_set(err, ERR_IO, "%s of %s: the reply is invalid", method, t->address);
}

/* ---- the group ---- */

int ctl_group_open(const char *address, struct ctl_group *g, struct err *err)
{
    struct ctl_task first = { 0 };
    void *reply = NULL;
    const Trainerd__V1__StatusReply *s;
    int rc;

    *g = (struct ctl_group){ 0 };
    rc = security_open(&(struct security_opts){ .address = address }, &g->security, err);
    if (rc == 0)
        rc = ctl_task_open(&first, &g->security, address, address, err);
    if (rc == 0)
        rc = ctl_task_call(&first, "Status", NULL, &trainerd__v1__status_reply__descriptor, NULL,
                           &reply, err);
    ctl_task_close(&first);
    if (rc < 0) {
        ctl_group_close(g);
        return rc;
    }
    s = reply;
    g->tasks = calloc(s->n_tasks + 1, sizeof(*g->tasks));
    CHECK(g->tasks != NULL);
    for (; rc == 0 && g->n < s->n_tasks; g->n++) {
        const Trainerd__V1__Task *t = s->tasks[g->n]->task;
        char name[80];

        if (t == NULL) {
            rc = err_set(err, ERR_IO, "Status of %s: a task has no name", address);
            break;
        }
        snprintf(name, sizeof(name), "%.40s %u", t->type, t->index);
        rc = ctl_task_open(&g->tasks[g->n], &g->security, name, t->address, err);
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    if (rc < 0)
        ctl_group_close(g);
    return rc;
}

void ctl_group_close(struct ctl_group *g)
{
    for (size_t i = 0; i < g->n; i++)
        ctl_task_close(&g->tasks[i]);
    free(g->tasks);
    security_close(&g->security);
    *g = (struct ctl_group){ 0 };
}

struct crew {
    struct ctl_group *group;
    void (*run)(struct ctl_task *t);
    atomic_size_t next; /* task that no thread has taken yet */
};

static void *work(void *arg)
{
    struct crew *c = arg;

    for (size_t i = atomic_fetch_add(&c->next, 1); i < c->group->n;
         i = atomic_fetch_add(&c->next, 1))
        c->run(&c->group->tasks[i]);
    return NULL;
}

void ctl_group_each(struct ctl_group *g, void (*run)(struct ctl_task *t))
{
    struct crew crew = { .group = g, .run = run };
    pthread_t threads[THREADS];
    size_t n = 0;

    /* Without a further thread the tasks are asked one after the other. */
    while (n < THREADS && n + 1 < g->n &&
           thread_start(&threads[n], "calls the tasks", work, &crew, NULL) == 0)
        n++;
    work(&crew);
    while (n > 0)
        pthread_join(threads[--n], NULL);
}

void ctl_add_text(struct buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        bool is_control = (unsigned char)*text < ' ' || *text == 0x7f;

        buf_add(out, is_control ? " " : text, 1);
    }
}
