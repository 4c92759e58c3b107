/* lease.c - the thread runs steps: renew (if this task holds the lease), read the storage, update
 * the held token, acquire (if requested), report. A step copies the requests, works without the
 * lock, and then combines its result with the requests that arrived in the meantime. */
#include "ckpt/lease_priv.h"

#include <stdatomic.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/thread.h"

enum {
    STEPS_PER_HOLD = 6,
    HOLD_MS_MIN = 10,
    CLOSE_MS = 100,
    EXPIRY_READS_MIN = 5, /* least number of reads before a lease is expired */
    RENEWALS_MIN = 2, /* renewals seen before the holder counts as alive: one may be its release */
};

struct acquire_request { /* a request to acquire */
    uint64_t after;
    uint32_t n;
    uint32_t members[LEASE_MEMBERS_MAX];
};

/* The requests of a step. */
struct job {
    uint64_t ticket;   /* the step completes all requests up to this ticket */
    uint64_t held;     /* token to renew; 0: none is held */
    uint64_t release;  /* token to mark as released; 0: none */
    uint64_t releases; /* number of releases requested before the step began */
    bool has_request;  /* `request` is valid */
};

/* The callback of the owner of the lease. */
struct owner {
    void (*on_change)(void *arg, const struct lease_state *s);
    void *arg;
    pthread_mutex_t report_lock; /* held during on_change */
    bool is_closed;              /* guarded by `report_lock`: no further calls */
};

/* Requests of the callers, which the next step of the thread handles. Guarded by the lock of the
 * thread. */
struct requests {
    uint64_t asked, answered; /* last ticket issued, completed */
    uint64_t confirmed;       /* last ticket whose step found this task's token to be the newest */
    bool has_request;         /* `next_request` is pending */
    struct acquire_request next_request;
    uint64_t release, releases; /* token to mark as released; number of releases requested */
    bool is_watching;
    char error[LEASE_TEXT_BYTES]; /* see lease_error() */
};

/* The step at work and what the thread knows about the storage. Used by the thread only. */
struct progress {
    struct job job;
    struct acquire_request request; /* the request of this step */
    struct lease_found found;
    bool was_read;                  /* `found` was read at least once */
    uint64_t read_ns;               /* clock_ns() after the last successful read */
    uint32_t renewals;              /* renewals of the token of `found` that reads have shown */
    uint64_t quiet_ns;              /* `found` has been unchanged for at least this time */
    uint64_t beats;                 /* heartbeats written */
    struct lease_state last_report; /* last reported state */
};

struct lease {
    char *directory; /* owned */
    char name[LEASE_NAME_BYTES], host[LEASE_NAME_BYTES], job_name[LEASE_NAME_BYTES];
    uint32_t rank;
    uint64_t incarnation, hold_ns, watch_ns;
    struct owner owner;

    _Atomic uint64_t until_ns;         /* see lease_hold_until() */
    _Atomic uint64_t failing_since_ns; /* start of the first failed step since a success; 0: none */

    struct ckpt_thread thread; /* its lock guards the fields up to is_closing */
    struct requests requests;
    uint64_t held; /* token; 0: none */
    bool is_closing;

    struct progress progress;
};

/* ---- holding ---- */

/* Caller holds the lock. token 0: nothing is held. */
static void set_held(struct lease *l, uint64_t token, uint64_t until_ns)
{
    l->held = token;
    atomic_store(&l->until_ns, until_ns);
}

uint64_t lease_hold_until(const struct lease *l)
{
    return atomic_load(&l->until_ns);
}

uint64_t lease_failing_ms(const struct lease *l)
{
    uint64_t since = atomic_load(&l->failing_since_ns), now = clock_ns();

    return since != 0 && now > since ? (now - since) / 1000000 : 0;
}

static bool is_held_now(const struct lease *l)
{
    return clock_ns() < lease_hold_until(l);
}

static bool is_own_record(const struct lease *l)
{
    return l->progress.found.is_known && l->progress.found.record.incarnation == l->incarnation;
}

/* Updates the held token after a step. read_rc, renew_rc: the results of reading the storage and of
 * the renewal before it. */
static void update_held(struct lease *l, uint64_t begin_ns, int read_rc, int renew_rc)
{
    const struct job *j = &l->progress.job;
    bool is_newest = read_rc == 0 && l->progress.found.token == j->held && is_own_record(l);

    pthread_mutex_lock(&l->thread.lock);
    if (j->held == 0 || l->held != j->held) {
        /* nothing was held, or it was released during the step */
    } else if ((read_rc == 0 && !is_newest) || !is_held_now(l)) {
        set_held(l, 0, 0); /* fenced, or expired: another task may own the lease */
    } else if (is_newest) {
        l->requests.confirmed = j->ticket;
        if (renew_rc == 0)
            set_held(l, j->held, begin_ns + l->hold_ns);
    }
    pthread_mutex_unlock(&l->thread.lock);
}

/* ---- a step ---- */

static int read_storage(struct lease *l, struct err *err)
{
    const struct lease_found *f = &l->progress.found;
    uint64_t begin = clock_ns(), token = f->token;
    size_t n = f->beat_bytes;
    char beat[LEASE_BEAT_BYTES];
    int rc;

    memcpy(beat, f->beat, n);
    rc = lease_store_read(l->directory, &l->progress.found, err);
    if (rc < 0)
        return rc;
    l->progress.was_read = true;
    if (f->token != token)
        l->progress.renewals = 0;
    else if (n > 0 && f->beat_bytes == n && memcmp(f->beat, beat, n) != 0)
        l->progress.renewals++;
    if (f->token != token || f->beat_bytes != n || memcmp(f->beat, beat, n) != 0) {
        l->progress.quiet_ns = 0;
    } else if (begin > l->progress.read_ns) {
        /* limited, because the clock may jump (a frozen host) */
        uint64_t gap = begin - l->progress.read_ns, most = l->watch_ns / EXPIRY_READS_MIN;

        l->progress.quiet_ns += gap < most ? gap : most;
    }
    l->progress.read_ns = clock_ns();
    return 0;
}

static bool is_foreign(const struct lease *l)
{
    const struct lease_found *f = &l->progress.found;

    return f->is_known && strcmp(f->record.job, l->job_name) != 0;
}

static bool is_expired(const struct lease *l)
{
    const struct lease_found *f = &l->progress.found;

    return is_own_record(l) || /* this task does not hold it, so no task renews it */
           (f->is_known && lease_beat_is_release(f->beat, f->beat_bytes, f->record.incarnation)) ||
           (is_foreign(l) && lease_process_has_ended(&f->record.process)) ||
           l->progress.quiet_ns >= l->watch_ns;
}

static int acquire(struct lease *l, struct err *err)
{
    struct lease_record *r;
    uint64_t begin_ns;
    bool is_held = false;
    int rc;

    if (l->progress.found.token != l->progress.request.after)
        return err_set(err, ERR_EXISTS, "lease %" PRIu64 " was requested",
                       l->progress.request.after + 1);
    if (is_foreign(l) && !is_expired(l))
        return err_set(err, ERR_EXISTS, "lease %" PRIu64 " is of another job",
                       l->progress.found.token);
    if (l->progress.found.token >= LEASE_TOKEN_MAX)
        return err_set(err, ERR_FULL,
                       "'%s' contains the largest possible token, which no task acquired: remove "
                       "its file",
                       l->directory);
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return err_set(err, ERR_NOMEM, "lease: out of memory");
    r->token = l->progress.request.after + 1;
    r->rank = l->rank;
    r->incarnation = l->incarnation;
    r->n_members = l->progress.request.n;
    memcpy(r->name, l->name, sizeof(r->name));
    memcpy(r->host, l->host, sizeof(r->host));
    memcpy(r->job, l->job_name, sizeof(r->job));
    lease_process_self(&r->process);
    memcpy(r->members, l->progress.request.members, l->progress.request.n * sizeof(*r->members));
    rc = lease_store_acquire(l->directory, r, &begin_ns, err);
    if (rc == 0) {
        l->progress.found.token = r->token;
        l->progress.found.is_known = true;
        l->progress.found.record = *r;
        l->progress.found.beat_bytes = 0;
        l->progress.renewals = 0;
        pthread_mutex_lock(&l->thread.lock);
        if (l->requests.releases != l->progress.job.releases)
            l->requests.release = r->token; /* released in the meantime: the next step records it */
        else
            is_held = !l->is_closing && clock_ns() - begin_ns < l->hold_ns;
        set_held(l, is_held ? r->token : 0, is_held ? begin_ns + l->hold_ns : 0);
        if (is_held)
            l->requests.confirmed = l->progress.job.ticket;
        pthread_mutex_unlock(&l->thread.lock);
        lease_store_prune(l->directory, r->token);
    }
    free(r);
    return rc;
}

/* ---- reporting ---- */

/* Prints the first failure of a step. ERR_EXISTS is not a failure: another task holds the lease. */
static void print_error(int rc, const struct err *trouble, char out[LEASE_TEXT_BYTES])
{
    size_t n = rc < 0 && rc != ERR_EXISTS
                   ? text_utf8_cut(trouble->text, strnlen(trouble->text, LEASE_TEXT_BYTES - 1))
                   : 0;

    snprintf(out, LEASE_TEXT_BYTES, "%.*s", (int)n, trouble->text);
}

/* Sets s->text. rc, trouble: the first failure of the step. */
static void describe(const struct lease *l, int rc, const struct err *trouble,
                     struct lease_state *s)
{
    const struct lease_found *f = &l->progress.found;

    print_error(rc, trouble, s->text);
    if (s->text[0] != '\0')
        return;
    if (f->token == 0)
        snprintf(s->text, sizeof(s->text), "no lease was acquired yet");
    else if (s->is_mine)
        snprintf(s->text, sizeof(s->text), "lease %" PRIu64 " is held by this task", f->token);
    else if (!f->is_known)
        snprintf(s->text, sizeof(s->text), "lease %" PRIu64 "%s: %.200s", f->token,
                 s->is_expired ? " is expired" : "", f->damage);
    else
        snprintf(s->text, sizeof(s->text), "lease %" PRIu64 " of %s (incarnation %s) is %s",
                 f->token, f->record.name, s->incarnation,
                 !s->is_expired                                                         ? "held"
                 : lease_beat_is_release(f->beat, f->beat_bytes, f->record.incarnation) ? "released"
                 : is_own_record(l)                                                     ? "lost"
                 : l->progress.quiet_ns < l->watch_ns ? "expired: its process ended"
                                                      : "expired");
}

static void report_state(struct lease *l, uint64_t held, int rc, const struct err *trouble)
{
    const struct lease_found *f = &l->progress.found;
    struct lease_state s;
    bool is_changed;

    memset(&s, 0, sizeof(s)); /* also the padding, because memcmp() compares the struct */
    s.answered = l->progress.job.ticket;
    s.is_known = l->progress.was_read;
    s.token = f->token;
    s.is_mine = held != 0 && held == f->token;
    s.is_expired = f->token != 0 && !s.is_mine && is_expired(l);
    s.holder = LEASE_NO_RANK;
    s.is_reachable = rc == 0 || rc == ERR_EXISTS;
    if (f->is_known) {
        s.is_foreign = is_foreign(l);
        s.is_renewed = !s.is_mine && !is_own_record(l) && l->progress.renewals >= RENEWALS_MIN;
        s.process = f->record.process;
        s.holder = s.is_foreign ? LEASE_NO_RANK : f->record.rank;
        s.n_members = s.is_foreign ? 0 : f->record.n_members;
        s.members = s.is_foreign ? NULL : f->record.members;
        snprintf(s.incarnation, sizeof(s.incarnation), "%016" PRIx64, f->record.incarnation);
        memcpy(s.name, f->record.name, sizeof(s.name));
        s.is_same_address = !s.is_foreign && f->record.host[0] != '\0' &&
                            strcmp(f->record.host, l->host) == 0 &&
                            strcmp(f->record.name, l->name) == 0;
    }
    describe(l, rc, trouble, &s);
    is_changed = memcmp(&s, &l->progress.last_report, sizeof(s)) != 0;
    l->progress.last_report = s;
    pthread_mutex_lock(&l->owner.report_lock);
    if (is_changed && !l->owner.is_closed)
        l->owner.on_change(l->owner.arg, &l->progress.last_report);
    pthread_mutex_unlock(&l->owner.report_lock);
}

static void run_step(struct lease *l)
{
    const struct job *j = &l->progress.job;
    struct err why = { .code = 0 }, later;
    uint64_t begin = clock_ns(), held;
    int rc = 0, read_rc;

    if (l->failing_since_ns == 0)
        atomic_store(&l->failing_since_ns, begin);
    if (j->release != 0)
        rc = lease_store_beat(l->directory, j->release, l->incarnation, ++l->progress.beats, true,
                              &why);
    if (j->held != 0)
        rc = lease_store_beat(l->directory, j->held, l->incarnation, ++l->progress.beats, false,
                              &why);
    read_rc = read_storage(l, rc == 0 ? &why : &later);
    update_held(l, begin, read_rc, rc);
    rc = rc == 0 ? read_rc : rc;
    if (j->has_request && read_rc == 0) {
        rc = acquire(l, &why);
        if (rc < 0) {
            (void)read_storage(l, NULL); /* reads the new holder; an error is already in rc */
            /* a failed attempt may leave files */
            lease_store_prune(l->directory, l->progress.found.token);
        }
    }
    if (rc == 0 || rc == ERR_EXISTS)
        atomic_store(&l->failing_since_ns, 0);
    pthread_mutex_lock(&l->thread.lock);
    print_error(rc, &why, l->requests.error);
    l->requests.answered = j->ticket;
    held = l->held;
    pthread_cond_broadcast(&l->thread.changed);
    pthread_mutex_unlock(&l->thread.lock);
    report_state(l, held, rc, &why);
}

/* ---- the thread ---- */

/* Waits for a request or until `next`; false: the lease is being closed. Caller holds the lock. */
static bool wait_for_work(struct lease *l, const struct timespec *next)
{
    int waited = 0;

    while (waited == 0 && !l->is_closing && l->requests.asked == l->requests.answered)
        waited = l->held != 0 || l->requests.is_watching
                     ? pthread_cond_timedwait(&l->thread.changed, &l->thread.lock, next)
                     : pthread_cond_wait(&l->thread.changed, &l->thread.lock);
    return !l->is_closing;
}

static void lease_free(struct lease *l)
{
    ckpt_thread_fini(&l->thread);
    pthread_mutex_destroy(&l->owner.report_lock);
    free(l->directory);
    free(l);
}

static void *run(void *arg)
{
    struct lease *l = arg;
    struct timespec next = clock_after_ms(0);

    pthread_mutex_lock(&l->thread.lock);
    while (wait_for_work(l, &next)) {
        l->progress.job = (struct job){ l->requests.asked, l->held, l->requests.release,
                                        l->requests.releases, l->requests.has_request };
        if (l->requests.has_request)
            l->progress.request = l->requests.next_request;
        l->requests.has_request = false;
        l->requests.release = 0;
        pthread_mutex_unlock(&l->thread.lock);
        next = clock_after_ms(l->hold_ns / 1000000 / STEPS_PER_HOLD);
        run_step(l);
        pthread_mutex_lock(&l->thread.lock);
    }
    pthread_mutex_unlock(&l->thread.lock);
    if (ckpt_thread_end(&l->thread))
        lease_free(l);
    return NULL;
}

/* ---- opening and closing ---- */

/* Copies a name, truncated, with control characters and invalid UTF-8 replaced by '?', for JSON and
 * for log lines. */
static void copy_name(char out[LEASE_NAME_BYTES], const char *name)
{
    size_t n = text_utf8_cut(name, strnlen(name, LEASE_NAME_BYTES - 1));
    bool is_text = text_is_utf8(name, n);

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];

        out[i] = c < ' ' || c == 0x7f || (c > 0x7f && !is_text) ? '?' : name[i];
    }
    out[n] = '\0';
}

int lease_open(const struct lease_opts *o, struct lease **out, struct err *err)
{
    struct lease *l;
    int rc;

    CHECK(o->directory != NULL && o->name != NULL && o->on_change != NULL);
    if (o->hold_ms < HOLD_MS_MIN || o->hold_ms >= o->watch_ms || o->watch_ms > UINT32_MAX)
        return err_set(err, ERR_INPUT,
                       "lease: held for %" PRIu64 " ms and watched for %" PRIu64
                       " ms; expected %d <= held < watched",
                       o->hold_ms, o->watch_ms, HOLD_MS_MIN);
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return err_set(err, ERR_NOMEM, "lease: out of memory");
    ckpt_thread_init(&l->thread);
    pthread_mutex_init(&l->owner.report_lock, NULL);
    copy_name(l->name, o->name);
    copy_name(l->host, o->host != NULL ? o->host : "");
    copy_name(l->job_name, o->job != NULL ? o->job : "");
    l->directory = strdup(o->directory);
    l->rank = o->rank;
    l->incarnation = o->incarnation;
    l->hold_ns = o->hold_ms * 1000000;
    l->watch_ns = o->watch_ms * 1000000;
    l->owner.on_change = o->on_change;
    l->owner.arg = o->arg;
    rc = l->directory != NULL ? ckpt_thread_start(&l->thread, run, l, err)
                              : err_set(err, ERR_NOMEM, "out of memory");
    if (rc < 0) {
        lease_free(l);
        return err_wrap(err, rc, "lease");
    }
    *out = l;
    return 0;
}

void lease_close(struct lease *l)
{
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->owner.report_lock); /* waits for a running on_change() */
    l->owner.is_closed = true;
    pthread_mutex_unlock(&l->owner.report_lock);
    pthread_mutex_lock(&l->thread.lock);
    l->is_closing = true;
    set_held(l, 0, 0);
    pthread_cond_broadcast(&l->thread.changed);
    pthread_mutex_unlock(&l->thread.lock);
    if (ckpt_thread_leave(&l->thread, CLOSE_MS))
        lease_free(l);
}

/* ---- requests ---- */

/* Issues a ticket and wakes the thread. Caller holds the lock. */
static uint64_t issue_ticket(struct lease *l)
{
    pthread_cond_broadcast(&l->thread.changed);
    return ++l->requests.asked;
}

uint64_t lease_acquire(struct lease *l, uint64_t after_token, const uint32_t *members, uint32_t n)
{
    uint64_t ticket;

    CHECK(n <= LEASE_MEMBERS_MAX);
    pthread_mutex_lock(&l->thread.lock);
    l->requests.has_request = true;
    l->requests.next_request.after = after_token;
    l->requests.next_request.n = n;
    if (n > 0)
        memcpy(l->requests.next_request.members, members, n * sizeof(*members));
    ticket = issue_ticket(l);
    pthread_mutex_unlock(&l->thread.lock);
    return ticket;
}

uint64_t lease_refresh(struct lease *l)
{
    uint64_t ticket;

    pthread_mutex_lock(&l->thread.lock);
    ticket = issue_ticket(l);
    pthread_mutex_unlock(&l->thread.lock);
    return ticket;
}

bool lease_release(struct lease *l, uint64_t wait_ms)
{
    struct timespec until = clock_after_ms(wait_ms);
    uint64_t ticket;
    bool is_done;
    int waited = 0;

    pthread_mutex_lock(&l->thread.lock);
    if (l->held != 0)
        l->requests.release = l->held;
    l->requests.releases++;
    l->requests.has_request = false;
    set_held(l, 0, 0);
    ticket = issue_ticket(l);
    while (waited == 0 && l->requests.answered < ticket)
        waited = pthread_cond_timedwait(&l->thread.changed, &l->thread.lock, &until);
    is_done = l->requests.answered >= ticket;
    pthread_mutex_unlock(&l->thread.lock);
    return is_done;
}

void lease_watch(struct lease *l, bool on)
{
    pthread_mutex_lock(&l->thread.lock);
    l->requests.is_watching = on;
    pthread_cond_broadcast(&l->thread.changed);
    pthread_mutex_unlock(&l->thread.lock);
}

void lease_error(struct lease *l, char out[LEASE_TEXT_BYTES])
{
    pthread_mutex_lock(&l->thread.lock);
    memcpy(out, l->requests.error, LEASE_TEXT_BYTES);
    pthread_mutex_unlock(&l->thread.lock);
}

int lease_check(struct lease *l, struct err *err)
{
    uint64_t ticket, until, now;
    int rc;

    pthread_mutex_lock(&l->thread.lock);
    ticket = issue_ticket(l);
    while (until = lease_hold_until(l), now = clock_ns(),
           now < until && l->requests.answered < ticket) {
        struct timespec t = clock_after_ms((until - now) / 1000000 + 1);

        (void)pthread_cond_timedwait(&l->thread.changed, &l->thread.lock, &t); /* checked again */
    }
    if (until == 0)
        rc = err_set(err, ERR_REFUSED, "this task does not hold the lease");
    else if (clock_ns() >= until)
        rc = err_set(err, ERR_REFUSED, "lease %" PRIu64 " was not renewed in time", l->held);
    else if (l->requests.confirmed < ticket)
        rc = err_set(err, ERR_IO, "the storage could not be read to confirm lease %" PRIu64,
                     l->held);
    else
        rc = 0;
    pthread_mutex_unlock(&l->thread.lock);
    return rc;
}
