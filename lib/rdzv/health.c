/* health.c - grpc.health.v1. The service "" is SERVING while the task trains (readiness); a named
 * service is SERVING while the process answers (liveness). */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "proto/health.pb-c.h"

struct watcher {
    struct rdzv_in *call;
    bool of_all; /* watches "" */
    struct watcher *next;
};

struct rdzv_health {
    bool serving;
    struct watcher *watchers;
};

static bool is_known(const char *service)
{
    static const char *const services[] = { "trainerd.v1.Control", "trainerd.v1.Rendezvous",
                                            "grpc.health.v1.Health" };

    for (size_t i = 0; i < COUNT_OF(services); i++)
        if (strcmp(service, services[i]) == 0)
            return true;
    return false;
}

static Grpc__Health__V1__HealthCheckResponse answer(const struct rdzv_health *h,
                                                    const char *service)
{
    Grpc__Health__V1__HealthCheckResponse a = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

    if (service[0] == '\0')
        a.status = h->serving
                       ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                       : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    else if (is_known(service))
        a.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    else
        a.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
    return a;
}

void rdzv_health_check(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Grpc__Health__V1__HealthCheckRequest *q = request;
    Grpc__Health__V1__HealthCheckResponse a = answer(r->health, q->service);

    if (a.status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN)
        rdzv_in_finish(call, GRPC_STATUS_NOT_FOUND, "no such service; expected '' (training), "
                       "'trainerd.v1.Control' (alive) or 'trainerd.v1.Rendezvous'");
    else
        rdzv_in_reply(call, &a.base);
}

static void on_closed(void *arg, struct rdzv_in *call, const char *why)
{
    struct rdzv_health *h = arg;

    (void)why;
    for (struct watcher **at = &h->watchers; *at != NULL; at = &(*at)->next) {
        struct watcher *w = *at;

        if (w->call != call)
            continue;
        *at = w->next;
        free(w);
        return;
    }
}

void rdzv_health_watch(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Grpc__Health__V1__HealthCheckRequest *q = request;
    Grpc__Health__V1__HealthCheckResponse a = answer(r->health, q->service);
    struct watcher *w = calloc(1, sizeof(*w));

    CHECK(w != NULL);
    *w = (struct watcher){ .call = call,
                           .of_all = q->service[0] == '\0',
                           .next = r->health->watchers };
    r->health->watchers = w;
    rdzv_in_on_closed(call, on_closed, r->health);
    rdzv_in_send(call, &a.base);
}

struct rdzv_health *rdzv_health_new(void)
{
    struct rdzv_health *h = calloc(1, sizeof(*h));

    CHECK(h != NULL);
    return h;
}

void rdzv_health_set(struct rdzv_health *h, bool serving)
{
    Grpc__Health__V1__HealthCheckResponse a;

    if (serving == h->serving)
        return;
    h->serving = serving;
    a = answer(h, "");
    for (struct watcher *w = h->watchers; w != NULL; w = w->next)
        if (w->of_all)
            rdzv_in_send(w->call, &a.base);
}

void rdzv_health_shut(struct rdzv_health *h)
{
    rdzv_health_set(h, false);
    while (h->watchers != NULL) {
        struct watcher *w = h->watchers;

        h->watchers = w->next;
        rdzv_in_finish(w->call, GRPC_STATUS_UNAVAILABLE, "the task ends");
        free(w);
    }
}

void rdzv_health_free(struct rdzv_health *h)
{
    free(h);
}
