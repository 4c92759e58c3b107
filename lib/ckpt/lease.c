#include "ckpt/lease.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/json.h"

enum { RECORD_MAX = 4096, STEPS_PER_HOLD = 4, NAME_MAX_BYTES = 200 };
static const char prefix[] = "lease-";

struct record {     /* what the newest file says */
    uint64_t token; /* 0: there is none */
    char holder[NAME_MAX_BYTES], incarnation[64];
    bool released;
};

struct lease {
    char *directory, *holder, *incarnation;
    uint64_t hold_ns, watch_ns;
    pthread_mutex_t lock; /* of a step, or a check */

    /* atomic */
    uint32_t wanted, forced;
    uint32_t held;
    uint64_t token, renewed_ns; /* before the last renewal that worked */

    /* of the steps */
    uint64_t count;
    struct buf seen;              /* bytes of the newest file */
    uint64_t seen_token, seen_ns; /* since when they are so */
    char told[LEASE_TEXT];        /* the last news, to say it once */
};

static bool is_name(const char *s)
{
    return s != NULL && s[0] != '\0' && strlen(s) < 64 && strpbrk(s, "/\"\\\n") == NULL;
}

int lease_new(const struct lease_opts *o, struct lease **out, struct err *err)
{
    struct lease *l;

    if (o->hold_ms == 0 || o->hold_ms >= o->watch_ms || !is_name(o->incarnation) ||
        o->directory == NULL || o->holder == NULL)
        return err_set(err, ERR_INPUT,
                       "lease: held for %" PRIu64 " ms and watched for %" PRIu64
                       " ms by '%s'; expected 0 < held < watched, and a name",
                       o->hold_ms, o->watch_ms, o->incarnation != NULL ? o->incarnation : "");
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return err_set(err, ERR_NOMEM, "lease: out of memory");
    l->directory = strdup(o->directory);
    l->holder = strdup(o->holder);
    l->incarnation = strdup(o->incarnation);
    l->hold_ns = o->hold_ms * 1000000;
    l->watch_ns = o->watch_ms * 1000000;
    pthread_mutex_init(&l->lock, NULL);
    if (l->directory == NULL || l->holder == NULL || l->incarnation == NULL) {
        lease_free(l);
        return err_set(err, ERR_NOMEM, "lease: out of memory");
    }
    *out = l;
    return 0;
}

void lease_free(struct lease *l)
{
    if (l == NULL)
        return;
    pthread_mutex_destroy(&l->lock);
    buf_fini(&l->seen);
    free(l->directory);
    free(l->holder);
    free(l->incarnation);
    free(l);
}

void lease_want(struct lease *l, bool force)
{
    if (force)
        __atomic_store_n(&l->forced, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&l->wanted, 1, __ATOMIC_RELEASE);
}

void lease_drop(struct lease *l)
{
    __atomic_store_n(&l->wanted, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&l->forced, 0, __ATOMIC_RELEASE);
}

bool lease_is_held(const struct lease *l)
{
    return __atomic_load_n(&l->held, __ATOMIC_ACQUIRE) != 0 &&
           clock_ns() - __atomic_load_n(&l->renewed_ns, __ATOMIC_ACQUIRE) <= l->hold_ns;
}

uint64_t lease_token(const struct lease *l)
{
    return __atomic_load_n(&l->token, __ATOMIC_ACQUIRE);
}

/* ---- the files ---- */

static void path_of(const struct lease *l, uint64_t token, char *out, size_t n)
{
    snprintf(out, n, "%s/%s%08" PRIu64, l->directory, prefix, token);
}

/* The number in "lease-00000012"; 0: another file. */
static uint64_t number_of(const char *name)
{
    char *end;
    uint64_t n;

    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0)
        return 0;
    name += sizeof(prefix) - 1;
    n = strtoull(name, &end, 10);
    return *end == '\0' && strlen(name) >= 8 && strlen(name) <= 18 &&
                   strspn(name, "0123456789") == strlen(name)
               ? n
               : 0;
}

/* The highest token there is; 0: none. */
static int newest(const struct lease *l, uint64_t *token, struct err *err)
{
    DIR *d = fault_hit("lease.look") ? (errno = EIO, NULL) : opendir(l->directory);
    struct dirent *e;

    *token = 0;
    if (d == NULL && errno == ENOENT)
        return 0;
    if (d == NULL)
        return err_sys(err, errno, "look for leases in '%s'", l->directory);
    while ((e = readdir(d)) != NULL) {
        uint64_t n = number_of(e->d_name);

        *token = n > *token ? n : *token;
    }
    closedir(d);
    return 0;
}

static void copy(char *out, size_t n, const cJSON *value)
{
    snprintf(out, n, "%s", cJSON_IsString(value) ? value->valuestring : "?");
}

/* A file that cannot be read is somebody's all the same: it ages like any other. */
static void parse(const struct buf *text, struct record *r)
{
    struct json *doc;
    struct err err;
    const cJSON *root;

    snprintf(r->holder, sizeof(r->holder), "?");
    if (json_parse("lease", text->data != NULL ? text->data : "", text->len, 0, &doc, &err) < 0)
        return;
    root = json_root(doc);
    copy(r->holder, sizeof(r->holder), cJSON_GetObjectItemCaseSensitive(root, "holder"));
    copy(r->incarnation, sizeof(r->incarnation),
         cJSON_GetObjectItemCaseSensitive(root, "incarnation"));
    r->released = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "released"));
    json_free(doc);
}

/* Reads the newest lease and notes since when it is as it is. */
static int look(struct lease *l, struct record *r, struct err *err)
{
    struct buf text = { 0 };
    char path[4096];
    int rc;

    *r = (struct record){ 0 };
    rc = newest(l, &r->token, err);
    if (rc == 0 && r->token > 0) {
        path_of(l, r->token, path, sizeof(path));
        rc = fs_read(path, RECORD_MAX, &text, err);
    }
    if (rc < 0) {
        buf_fini(&text);
        return rc;
    }
    if (l->seen_ns == 0 || r->token != l->seen_token || text.len != l->seen.len ||
        (text.len > 0 && memcmp(text.data, l->seen.data, text.len) != 0)) {
        buf_fini(&l->seen);
        l->seen = text;
        l->seen_token = r->token;
        l->seen_ns = clock_ns();
    } else {
        buf_fini(&text);
    }
    if (r->token > 0)
        parse(&l->seen, r);
    return 0;
}

static void write_record(const struct lease *l, uint64_t token, bool released, struct buf *out)
{
    cJSON *o = cJSON_CreateObject();
    char *text;

    cJSON_AddNumberToObject(o, "token", (double)token);
    cJSON_AddStringToObject(o, "holder", l->holder);
    cJSON_AddStringToObject(o, "incarnation", l->incarnation);
    cJSON_AddNumberToObject(o, "count", (double)l->count);
    cJSON_AddBoolToObject(o, "released", released);
    text = cJSON_PrintUnformatted(o);
    buf_str(out, text != NULL ? text : "{}");
    cJSON_free(text);
    cJSON_Delete(o);
}

/* Makes the file of this number, if nobody has. Errors: ERR_EXISTS, and of the storage. */
static int take(struct lease *l, uint64_t token, struct err *err)
{
    struct buf text = { 0 };
    char path[4096], temporary[4096];
    int rc;

    path_of(l, token, path, sizeof(path));
    snprintf(temporary, sizeof(temporary), "%s/.lease-%s", l->directory, l->incarnation);
    rc = fs_mkdirs(l->directory, err);
    write_record(l, token, false, &text);
    if (rc == 0)
        rc = fs_replace(temporary, text.data, text.len, err);
    if (rc == 0 && (fault_hit("lease.take") ? (errno = EIO, -1) : link(temporary, path)) < 0)
        rc = err_sys(err, errno, "take '%s'", path);
    (void)unlink(temporary);
    if (rc == 0)
        rc = fs_sync_dir(l->directory, err);
    buf_fini(&text);
    return rc;
}

static int renew(struct lease *l, uint64_t token, bool released, struct err *err)
{
    struct buf text = { 0 };
    char path[4096];
    int rc;

    path_of(l, token, path, sizeof(path));
    l->count++;
    write_record(l, token, released, &text);
    rc = fault_hit("lease.renew") ? err_set(err, ERR_IO, "fault point lease.renew")
                                  : fs_replace(path, text.data, text.len, err);
    buf_fini(&text);
    return rc;
}

/* Old numbers tell nobody anything; the one before stays, for those who come late. */
static void tidy(const struct lease *l, uint64_t token)
{
    char path[4096];

    for (uint64_t n = token - 1; n-- > 1 && n + 8 > token;) {
        path_of(l, n, path, sizeof(path));
        (void)unlink(path);
    }
}

/* ---- a step ---- */

static enum lease_news say(struct lease *l, enum lease_news news, char *text)
{
    if (news == LEASE_WAITING && strcmp(l->told, text) == 0)
        return LEASE_NOTHING;
    snprintf(l->told, sizeof(l->told), "%s", text);
    return news;
}

static enum lease_news lose(struct lease *l, char *text)
{
    __atomic_store_n(&l->held, 0, __ATOMIC_RELEASE);
    return say(l, LEASE_LOST, text);
}

static enum lease_news hold(struct lease *l, char *text)
{
    uint64_t token = lease_token(l), begin = clock_ns();
    struct record r;
    struct err err;
    int rc = look(l, &r, &err);

    if (rc == 0 && r.token > token) {
        snprintf(text, LEASE_TEXT, "%.180s took lease %" PRIu64 " after our %" PRIu64, r.holder,
                 r.token, token);
        return lose(l, text);
    }
    if (rc == 0)
        rc = renew(l, token, __atomic_load_n(&l->wanted, __ATOMIC_ACQUIRE) == 0, &err);
    if (rc == 0 && __atomic_load_n(&l->wanted, __ATOMIC_ACQUIRE) == 0) {
        snprintf(text, LEASE_TEXT, "lease %" PRIu64 " is given back", token);
        return lose(l, text);
    }
    if (rc == 0)
        __atomic_store_n(&l->renewed_ns, begin, __ATOMIC_RELEASE);
    if (rc == 0 || clock_ns() - __atomic_load_n(&l->renewed_ns, __ATOMIC_ACQUIRE) <= l->hold_ns)
        return LEASE_NOTHING;
    snprintf(text, LEASE_TEXT, "lease %" PRIu64 " could not be renewed for %.1f s: %.150s", token,
             (double)l->hold_ns * 1e-9, err.text);
    return lose(l, text);
}

static enum lease_news contend(struct lease *l, char *text)
{
    uint64_t begin = clock_ns();
    bool forced = __atomic_load_n(&l->forced, __ATOMIC_ACQUIRE) != 0;
    struct record r;
    struct err err;
    int rc = look(l, &r, &err);

    if (rc < 0) {
        snprintf(text, LEASE_TEXT, "%.240s", err.text);
        return say(l, LEASE_WAITING, text);
    }
    if (r.token > 0 && !r.released && !forced && clock_ns() - l->seen_ns < l->watch_ns) {
        snprintf(text, LEASE_TEXT, "lease %" PRIu64 " is held by %.180s", r.token, r.holder);
        return say(l, LEASE_WAITING, text);
    }
    rc = take(l, r.token + 1, &err);
    if (rc < 0) { /* ERR_EXISTS: another was faster; its file is looked at next time */
        snprintf(text, LEASE_TEXT, "%.240s", err.text);
        return say(l, LEASE_WAITING, text);
    }
    l->count = 0;
    __atomic_store_n(&l->forced, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&l->token, r.token + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&l->renewed_ns, begin, __ATOMIC_RELEASE);
    __atomic_store_n(&l->held, 1, __ATOMIC_RELEASE);
    tidy(l, r.token + 1);
    snprintf(text, LEASE_TEXT, "lease %" PRIu64 " is ours", r.token + 1);
    return say(l, LEASE_GRANTED, text);
}

enum lease_news lease_step(struct lease *l, char *text, uint64_t *wait_ms)
{
    enum lease_news news = LEASE_NOTHING;

    text[0] = '\0';
    pthread_mutex_lock(&l->lock);
    if (__atomic_load_n(&l->held, __ATOMIC_ACQUIRE) != 0)
        news = hold(l, text);
    else if (__atomic_load_n(&l->wanted, __ATOMIC_ACQUIRE) != 0)
        news = contend(l, text);
    pthread_mutex_unlock(&l->lock);
    *wait_ms = l->hold_ns / 1000000 / STEPS_PER_HOLD + 1;
    return news;
}

int lease_check(struct lease *l, struct err *err)
{
    uint64_t token;
    int rc;

    pthread_mutex_lock(&l->lock);
    rc = newest(l, &token, err);
    pthread_mutex_unlock(&l->lock);
    if (rc < 0)
        return rc;
    if (token > lease_token(l))
        return err_set(err, ERR_REFUSED, "lease %" PRIu64 " was taken after our %" PRIu64, token,
                       lease_token(l));
    if (!lease_is_held(l))
        return err_set(err, ERR_REFUSED, "lease %" PRIu64 " is not held any more", lease_token(l));
    return 0;
}
