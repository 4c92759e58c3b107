/* run.c - the life cycle of a preflight; see preflight.h. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "preflight/preflight_priv.h"
#include "preflight/probe_storage.h"

/* The texts of a message are printable ASCII: a reason of the system may contain any path. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

static struct storage_id own_id(const struct preflight *p)
{
    return (struct storage_id){ p->o->self, p->facts.nonce };
}

static int open_all(struct preflight *p, struct err *err)
{
    const struct preflight_opts *o = p->o;

    p->facts = o->facts;
    p->until_ms = clock_ms() + o->limit_ms;
    p->dial_until_ms = clock_ms() + o->limit_ms / 2;
    p->round = NO_ROUND;
    p->peers = calloc(o->world, sizeof(*p->peers));
    p->rows = calloc(o->world, sizeof(*p->rows));
    if (p->peers == NULL || p->rows == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < o->world; i++) {
        p->peers[i].out = (struct conn){ .fd = -1, .stop = &p->stop };
        p->peers[i].ended = NO_ROUND;
        p->rows[i].entries = calloc(o->world, sizeof(*p->rows[i].entries));
        if (p->rows[i].entries == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
    }
    if (rng_os(&p->facts.nonce, sizeof(p->facts.nonce)) < 0)
        return err_set(err, ERR_IO, "the system gives no random numbers");
    if (o->storage != NULL) /* before others can ask for the file */
        storage_begin(o->storage, own_id(p), STORAGE_MS, &p->facts.sync_us, p->facts.storage_fault);
    make_printable(p->facts.storage_fault);
    make_printable(p->facts.open_fault);
    return serve_open(p, err);
}

/* Ends the requests of this task, and answers those of the others until they have left. */
static void leave(struct preflight *p)
{
    struct buf bye = { 0 };
    bool is_alone = false;

    message_write(MESSAGE_BYE, NULL, 0, &bye);
    for (uint32_t i = 0; i < p->o->world; i++) {
        if (p->peers[i].out.fd >= 0 && !bye.failed)
            (void)conn_send(&p->peers[i].out, bye.data, bye.len, clock_ms() + STALL_MS);
        conn_close(&p->peers[i].out);
    }
    buf_fini(&bye);
    while (!is_alone && clock_ms() < p->until_ms + STALL_MS && !preflight_is_stopped(p)) {
        is_alone = true;
        pthread_mutex_lock(&p->lock);
        for (uint32_t i = 0; i < p->o->world; i++)
            is_alone = is_alone && p->peers[i].n_in == 0;
        if (!is_alone)
            preflight_wait(p);
        pthread_mutex_unlock(&p->lock);
    }
}

static void close_all(struct preflight *p)
{
    atomic_store(&p->stop, true);
    serve_close(p);
    if (p->o->storage != NULL && p->facts.nonce != 0)
        storage_end(p->o->storage, own_id(p), STORAGE_MS);
    for (uint32_t i = 0; p->peers != NULL && i < p->o->world; i++)
        conn_close(&p->peers[i].out);
    free(p->peers);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

static int conclude(struct preflight *p, struct preflight_result *out, struct err *err)
{
    const struct preflight_table t = { .world = p->o->world, .tasks = p->o->tasks, .rows = p->rows };
    int rc;

    *out = (struct preflight_result){ .rows = p->rows, .world = p->o->world };
    p->rows = NULL;
    if (p->o->yields && p->has_foreign) {
        out->has_yielded = true;
        return 0;
    }
    rc = judge(&t, &out->findings, err);
    for (uint32_t i = 0; rc == 0 && i < out->findings.n; i++)
        out->has_fault = out->has_fault || out->findings.at[i].severity == PREFLIGHT_FAULT;
    return rc;
}

static void free_rows(struct preflight_row *rows, uint32_t world)
{
    for (uint32_t i = 0; rows != NULL && i < world; i++)
        free(rows[i].entries);
    free(rows);
}

int preflight_run(const struct preflight_opts *opts, struct preflight_result *out, struct err *err)
{
    struct preflight p = { .o = opts };
    int rc;

    CHECK(opts->world >= 2 && opts->world <= PREFLIGHT_WORLD_MAX && opts->self < opts->world);
    *out = (struct preflight_result){ .world = 0 };
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    rc = open_all(&p, err);
    if (rc == 0)
        dial_all(&p);
    if (rc == 0 && !(opts->yields && p.has_foreign)) {
        measure_all(&p);
        collect_rows(&p);
        leave(&p);
    }
    if (rc == 0 && preflight_is_stopped(&p))
        rc = err_set(err, ERR_CANCELED, "the preflight was stopped");
    close_all(&p); /* before the rows are read without the lock */
    if (rc == 0)
        rc = conclude(&p, out, err);
    free_rows(p.rows, opts->world);
    if (rc < 0)
        preflight_free(out);
    return rc;
}

void preflight_free(struct preflight_result *r)
{
    free_rows(r->rows, r->world);
    free(r->findings.at);
    *r = (struct preflight_result){ .world = 0 };
}
