/* evaluator_state.c - see evaluator_state.h.
 *
 * File: {"format": 1, "metric", "mode": "min" or "max", "job_digest", "evaluated_step",
 *        "best": null or {"step", "value"}} */
#include "daemon/evaluator_state.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/text.h"

#define FILE_NAME "evaluator.json"
#define LOCK_NAME ".lock"

enum { FORMAT = 1, FILE_BYTES_MAX = 1 << 16 };

static const char *mode_of(const struct evaluator_state *s)
{
    return s->higher_is_better ? "max" : "min";
}

/* ---- reading ---- */

static int unexpected(const struct json *doc, const cJSON *value, const char *expected,
                      struct err *err)
{
    char found[160];

    if (value == NULL)
        return json_error(doc, NULL, err, "expected %s, found no such key", expected);
    json_describe(doc, value, found, sizeof(found));
    return json_error(doc, value, err, "expected %s, found %s", expected, found);
}

static int read_step(const struct json *doc, const cJSON *object, const char *key, uint64_t *out,
                     struct err *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    char expected[96];

    if (cJSON_IsNumber(v) && text_u64(json_number_text(doc, v), UINT64_MAX, out))
        return 0;
    snprintf(expected, sizeof(expected), "\"%s\": a step", key);
    return unexpected(doc, v, expected, err);
}

static int read_text(const struct json *doc, const char *key, size_t n, char *out, struct err *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(json_root(doc), key);
    char expected[96];

    if (cJSON_IsString(v) && strlen(v->valuestring) < n) {
        strcpy(out, v->valuestring);
        return 0;
    }
    snprintf(expected, sizeof(expected), "\"%s\": a string of less than %zu bytes", key, n);
    return unexpected(doc, v, expected, err);
}

static int read_best(const struct json *doc, struct evaluator_state *s, struct err *err)
{
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(json_root(doc), "best"), *value;
    int rc;

    if (cJSON_IsNull(best))
        return 0;
    value = cJSON_GetObjectItemCaseSensitive(best, "value");
    if (!cJSON_IsNumber(value))
        return unexpected(doc, value != NULL ? value : best,
                          "\"best\": null, or an object with \"step\" and \"value\"", err);
    rc = read_step(doc, best, "step", &s->best_step, err);
    s->best = value->valuedouble;
    s->has_best = rc == 0;
    return rc;
}

static int parse(const struct json *doc, struct evaluator_state *out, struct err *err)
{
    struct evaluator_state s = { .evaluated_step = 0 };
    char mode[8];
    uint64_t format;
    int rc = read_step(doc, json_root(doc), "format", &format, err);

    if (rc == 0 && format != FORMAT)
        rc = unexpected(doc, cJSON_GetObjectItemCaseSensitive(json_root(doc), "format"), "format 1",
                        err);
    if (rc == 0)
        rc = read_text(doc, "metric", sizeof(s.metric), s.metric, err);
    if (rc == 0)
        rc = read_text(doc, "mode", sizeof(mode), mode, err);
    if (rc == 0)
        rc = read_text(doc, "job_digest", sizeof(s.job_digest), s.job_digest, err);
    if (rc == 0)
        rc = read_step(doc, json_root(doc), "evaluated_step", &s.evaluated_step, err);
    if (rc == 0)
        rc = read_best(doc, &s, err);
    if (rc == 0 && strcmp(mode, "min") != 0 && strcmp(mode, "max") != 0)
        rc = unexpected(doc, cJSON_GetObjectItemCaseSensitive(json_root(doc), "mode"), "min or max",
                        err);
    if (rc < 0)
        return rc;
    s.higher_is_better = strcmp(mode, "max") == 0;
    *out = s;
    return 0;
}

int evaluator_state_read(const char *folder, struct evaluator_state *s, bool *is_other,
                         struct err *err)
{
    struct evaluator_state read;
    struct json *doc = NULL;
    struct buf text = { 0 };
    char *path = fs_join(folder, FILE_NAME);
    int rc;

    *is_other = false;
    if (path == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", folder);
    rc = fs_read(path, FILE_BYTES_MAX, &text, err);
    if (rc == ERR_NOENT) {
        free(path);
        return 0;
    }
    if (rc == 0)
        rc = json_parse(path, text.data, text.len, 0, &doc, err);
    if (rc == 0)
        rc = parse(doc, &read, err);
    if (rc == ERR_INPUT)
        err_wrap(err, rc, "the state of the evaluator is damaged; remove the file, and all checkpoints are "
                          "evaluated again");
    if (rc == 0) {
        *is_other =
            strcmp(read.metric, s->metric) != 0 || read.higher_is_better != s->higher_is_better;
        if (!*is_other)
            *s = read;
    }
    json_free(doc);
    buf_fini(&text);
    free(path);
    return rc;
}

/* ---- writing ---- */

int evaluator_state_write(const char *folder, const struct evaluator_state *s, struct err *err)
{
    struct buf text = { 0 };
    char *path = fs_join(folder, FILE_NAME);
    int rc;

    buf_printf(&text, "{\"format\": %d, \"metric\": ", FORMAT);
    buf_json(&text, s->metric);
    buf_printf(&text, ", \"mode\": \"%s\", \"job_digest\": ", mode_of(s));
    buf_json(&text, s->job_digest);
    buf_printf(&text,
               ", \"evaluated_step\": %llu, \"best\": ", (unsigned long long)s->evaluated_step);
    if (s->has_best) {
        buf_printf(&text, "{\"step\": %llu, \"value\": ", (unsigned long long)s->best_step);
        buf_f64(&text, s->best);
        buf_str(&text, "}}\n");
    } else {
        buf_str(&text, "null}\n");
    }
    if (path == NULL || text.failed)
        rc = err_set(err, ERR_NOMEM, "'%s': out of memory", folder);
    else
        rc = fs_replace(path, text.data, text.len, err);
    buf_fini(&text);
    free(path);
    return rc;
}

int evaluator_lock(const char *folder, int *fd, struct err *err)
{
    char *path = fs_join(folder, LOCK_NAME);
    int rc = 0, file;

    if (path == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", folder);
    file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (file < 0) {
        rc = err_sys(err, errno, "open '%s'", path);
    } else if (flock(file, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK)
            rc = err_set(err, ERR_EXISTS,
                         "'%s' is locked by another process of this evaluator: end one of the "
                         "two, or start this one with another index",
                         path);
        close(file);
        file = -1;
    }
    if (rc == 0)
        *fd = file;
    free(path);
    return rc;
}

/* ---- changes ---- */

void evaluator_state_reset(struct evaluator_state *s)
{
    struct evaluator_state empty = { .higher_is_better = s->higher_is_better };

    memcpy(empty.metric, s->metric, sizeof(empty.metric));
    *s = empty;
}

bool evaluator_state_record(struct evaluator_state *s, const char *job_digest, uint64_t step,
                            double value)
{
    bool is_best = isfinite(value) &&
                   (!s->has_best || (s->higher_is_better ? value > s->best : value < s->best));

    snprintf(s->job_digest, sizeof(s->job_digest), "%s", job_digest);
    s->evaluated_step = step;
    if (is_best) {
        s->has_best = true;
        s->best_step = step;
        s->best = value;
    }
    return is_best;
}

/* ---- the next checkpoint ---- */

static bool is_damaged(const struct evaluator_damaged *d, const struct ckpt_entry *e)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->at[i].step == e->step && d->at[i].inode == e->inode &&
            d->at[i].changed_ns == e->changed_ns)
            return true;
    return false;
}

void evaluator_damaged_add(struct evaluator_damaged *d, const struct ckpt_entry *e)
{
    d->at[d->next] = *e;
    d->next = (d->next + 1) % COUNT_OF(d->at);
    if (d->n < COUNT_OF(d->at))
        d->n++;
}

ptrdiff_t evaluator_choose(const struct ckpt_entry *entries, size_t n, uint64_t evaluated_step,
                           uint64_t newest_seen, const struct evaluator_damaged *damaged,
                           size_t *skipped)
{
    ptrdiff_t first = -1, last = -1;
    size_t pending = 0, published = 0;

    *skipped = 0;
    for (size_t i = 0; i < n; i++) {
        if (entries[i].step <= evaluated_step || is_damaged(damaged, &entries[i]))
            continue;
        if (first < 0)
            first = (ptrdiff_t)i;
        last = (ptrdiff_t)i;
        pending++;
        published += entries[i].step > newest_seen;
    }
    if (newest_seen == 0 || published < 2)
        return first;
    *skipped = pending - 1;
    return last;
}
