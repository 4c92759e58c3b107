#include "daemon/own_name.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/service.h"
#include "daemon/settle.h"
#include "preflight/own_name.h"
#include "preflight/resolve.h"

enum { NAME_MS = 5000, PAUSE_MS = 250, WHY_BYTES = 512 };

/* Returns true if a stop signal arrives within the pause. */
static bool pause_until_stopped(void)
{
    struct timespec limit = { .tv_nsec = PAUSE_MS * 1000000L };
    sigset_t stop;

    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    return sigtimedwait(&stop, NULL, &limit) > 0;
}

/* States on the log what the task waits for, whenever that changes. */
static void report(const char *why, char last[WHY_BYTES], double seconds)
{
    if (strcmp(why, last) == 0)
        return;
    snprintf(last, WHY_BYTES, "%s", why);
    log_warn("address", "waits for the name of this task, for at most %.10g s: %s", seconds, why);
    service_status(why);
}

static int refuse(const struct settled *s, enum own_name state, const char *why, struct err *err)
{
    double seconds = s->conf->train.deadline_seconds;

    switch (state) {
    case OWN_NAME_LOOPBACK:
        return err_set(err, ERR_INPUT,
                       "listen on %s: %s; remove that line from /etc/hosts, write an address of this host into the "
                       "cluster, or use --bind any", s->listen, why);
    case OWN_NAME_FOREIGN:
        return err_set(err, ERR_INPUT,
                       "listen on %s: for %.10g s (train.deadline_seconds) %s; the cluster must name this host for this "
                       "task, or use --bind any", s->listen, seconds, why);
    default:
        return err_set(err, ERR_IO,
                       "listen on %s: for %.10g s (train.deadline_seconds) %s; register the name of this task, correct "
                       "the cluster, or use --bind any", s->listen, seconds, why);
    }
}

static int wait_for(const struct settled *s, const char *const *others, uint32_t n_others,
                    struct err *err)
{
    const char *host = s->cluster->self->host;
    double seconds = s->conf->train.deadline_seconds;
    uint64_t until_ms = clock_ms() + (uint64_t)(seconds * 1e3);
    char why[WHY_BYTES], last[WHY_BYTES] = "";

    for (;;) {
        enum own_name state = own_name_check(host, others, n_others, NAME_MS, why, sizeof(why));

        if (state == OWN_NAME_GOOD) {
            if (last[0] != '\0')
                log_info("address", "'%s' resolves to an address of this host now", host);
            return 0;
        }
        if (state == OWN_NAME_LOOPBACK || clock_ms() >= until_ms)
            return refuse(s, state, why, err);
        if (resolve_is_literal(host))
            return 0; /* it does not change: to listen there fails with the reason */
        report(why, last, seconds);
        service_watchdog(true);
        if (pause_until_stopped())
            return err_set(err, ERR_CANCELED, "stopped while it waited for its name: %s", why);
    }
}

int own_name_wait(const struct settled *s, struct err *err)
{
    const struct cluster *c = s->cluster;
    const char **others;
    uint32_t n = 0;
    int rc;

    if (s->listen[0] == '\0' || s->binds_any)
        return 0;
    others = calloc(c->n_tasks, sizeof(*others));
    if (others == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < c->n_tasks; i++)
        if (&c->tasks[i] != c->self && c->tasks[i].host != NULL)
            others[n++] = c->tasks[i].host;
    rc = wait_for(s, others, n, err);
    free(others);
    return rc;
}
