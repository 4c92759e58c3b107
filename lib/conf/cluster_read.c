/* cluster_read.c - reads the JSON text of TF_CONFIG into a draft: the jobs, and the description of
 * this task.
 *
 * TensorFlow reads three keys, each with Python's `key in value`. For a list this tests for an
 * equal element, for a string for a substring. The tf profile does the same. */
#include "conf/cluster_read.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "conf/cluster_draft.h"
#include "conf/cluster_int.h"

enum { DESCRIBE_BYTES = 160 };

/* The keys that readers of TF_CONFIG define. The strict profile checks the type also of the keys
 * that trainerd does not use. Other keys are ignored. */
static const struct known_key {
    const char *name;
    int type;             /* cJSON_Object or cJSON_String; 0: checked elsewhere, or any type */
    const char *expected; /* for the message */
} known_keys[] = {
    { "cluster", 0, NULL },
    { "task", 0, NULL },
    { "rpc_layer", 0, NULL },
    { "session_master", cJSON_String, "a string" },
    { "eval_session_master", cJSON_String, "a string" },
    { "service", cJSON_Object, "an object" },
    { "model_dir", cJSON_String, "a non-empty string" },
    { "environment", 0, NULL },
};

/* Sets *out to value[key] if Python's `key in value` is true, else to NULL. `what` is the name of
 * the value in messages. Errors, as in Python: ERR_INPUT for a list or a string that contains the
 * key, and for values that are no container; strict: for all values but objects. */
static int look_up(const struct cluster_draft *d, const cJSON *value, const char *what,
                   const char *key, const cJSON **out, struct err *err)
{
    char found[DESCRIBE_BYTES];
    bool is_error = !cJSON_IsArray(value) && !cJSON_IsString(value);
    const cJSON *item;

    *out = NULL;
    if (cJSON_IsObject(value)) {
        *out = cJSON_GetObjectItemCaseSensitive(value, key);
        return 0;
    }
    if (cJSON_IsString(value))
        is_error = strstr(value->valuestring, key) != NULL;
    if (cJSON_IsArray(value)) {
        cJSON_ArrayForEach(item, value) is_error |=
            cJSON_IsString(item) && strcmp(item->valuestring, key) == 0;
    }
    if (!is_error && !cluster_is_strict(d))
        return 0;
    json_describe(d->doc, value, found, sizeof(found));
    return cluster_reject(d, value, err, "%s must be a JSON object, found %s", what, found);
}

/* Python's `not v`. */
static bool is_falsy(const cJSON *v)
{
    if (cJSON_IsArray(v) || cJSON_IsObject(v))
        return v->child == NULL;
    if (cJSON_IsString(v))
        return v->valuestring[0] == '\0';
    return cJSON_IsNumber(v) ? v->valuedouble == 0 : !cJSON_IsTrue(v);
}

static int read_rpc_layer(const struct cluster_draft *d, const cJSON *v, struct err *err)
{
    char found[DESCRIBE_BYTES];

    if (v == NULL || (cJSON_IsString(v) && strcmp(v->valuestring, "grpc") == 0))
        return 0;
    if (is_falsy(v) && !cluster_is_strict(d))
        return 0;
    json_describe(d->doc, v, found, sizeof(found));
    return cluster_reject(
        d, v, err, "rpc_layer must be \"grpc\", found %s; write \"grpc\" or leave it out", found);
}

/* Rejects unused keys of a wrong type (strict), and adds a note for unknown keys that may be
 * typos. */
static int check_keys(struct cluster_draft *d, const cJSON *root, struct err *err)
{
    const char *names[COUNT_OF(known_keys)];
    char found[DESCRIBE_BYTES];
    const cJSON *v;

    for (size_t i = 0; i < COUNT_OF(known_keys); i++)
        names[i] = known_keys[i].name;
    cJSON_ArrayForEach(v, root)
    {
        const struct known_key *k = known_keys;

        while (k < known_keys + COUNT_OF(known_keys) && strcmp(k->name, v->string) != 0)
            k++;
        if (k == known_keys + COUNT_OF(known_keys)) {
            const char *near = text_nearest(v->string, names, COUNT_OF(names));

            if (near != NULL)
                cluster_note(d, "%s: the unknown key \"%.64s\" is ignored; did you mean \"%s\"?",
                             d->label, v->string, near);
            continue;
        }
        if (!cluster_is_strict(d) || k->type == 0)
            continue;
        if ((v->type & 0xff) == k->type &&
            !(cJSON_IsString(v) && is_falsy(v) && strcmp(k->name, "model_dir") == 0))
            continue;
        json_describe(d->doc, v, found, sizeof(found));
        return cluster_reject(d, v, err, "%s must be %s, found %s; correct it or leave it out",
                              k->name, k->expected, found);
    }
    return 0;
}

/* --- the cluster --- */

static int read_key_index(const struct cluster_draft *d, const cJSON *at, uint32_t *out,
                          struct err *err)
{
    uint64_t plain;
    int64_t index;

    if (text_u64(at->string, CLUSTER_MAX_INDEX, &plain)) {
        *out = (uint32_t)plain;
        return 0;
    }
    if (cluster_python_int_text(at->string, &index)) {
        if (index < 0)
            return cluster_reject(d, at, err,
                                  "task index \"%.32s\" is negative; indices count "
                                  "from 0",
                                  at->string);
        if (index > CLUSTER_MAX_INDEX)
            return cluster_reject(d, at, err, "task index \"%.32s\" is above %d", at->string,
                                  CLUSTER_MAX_INDEX);
        if (!cluster_is_strict(d)) {
            *out = (uint32_t)index;
            return 0;
        }
        return cluster_reject(d, at, err,
                              "task index \"%.32s\" must be a plain decimal number: "
                              "write \"%lld\"",
                              at->string, (long long)index);
    }
    return cluster_reject(d, at, err,
                          "task index \"%.32s\" is not a number; the keys of a job "
                          "are indices: {\"0\": \"host:port\", ...}",
                          at->string);
}

static int read_job(struct cluster_draft *d, enum cluster_type type, const cJSON *job,
                    struct err *err)
{
    char found[DESCRIBE_BYTES];
    uint32_t n = 0;
    const cJSON *v;

    json_describe(d->doc, job, found, sizeof(found));
    if (!cJSON_IsArray(job) && !cJSON_IsObject(job))
        return cluster_reject(d, job, err,
                              "job \"%s\" must be a list of addresses or an object of index to "
                              "address, found %s%s",
                              job->string, found,
                              cJSON_IsString(job) ? "; wrap it in a list: [...]" : "");
    cJSON_ArrayForEach(v, job)
    {
        uint32_t index = n++;
        int rc = 0;

        if (cJSON_IsObject(job))
            rc = read_key_index(d, v, &index, err);
        if (rc < 0)
            return rc;
        if (!cJSON_IsString(v)) {
            json_describe(d->doc, v, found, sizeof(found));
            return cluster_reject(d, v, err, "an address must be a string \"host:port\", found %s",
                                  found);
        }
        rc = cluster_add(d, type, index, v->valuestring, strlen(v->valuestring), v, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Whether the list "a,b,c" contains `name`. */
static bool is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    }
    return false;
}

static int read_jobs(struct cluster_draft *d, const cJSON *cluster, struct err *err)
{
    char found[DESCRIBE_BYTES];
    const cJSON *job;

    if (!cJSON_IsObject(cluster)) {
        json_describe(d->doc, cluster, found, sizeof(found));
        return cluster_reject(d, cluster, err,
                              "cluster must be an object of job name to "
                              "addresses, found %s; leave it out to run alone",
                              found);
    }
    cJSON_ArrayForEach(job, cluster)
    {
        enum cluster_type type;
        int rc;

        d->has_cluster = true;
        if (is_listed(d->opts->ignore_jobs, job->string)) {
            cluster_note(d, "job \"%.64s\" is ignored because of --ignore-jobs", job->string);
            continue;
        }
        if (!cluster_type_parse(d, job->string, &type))
            return cluster_reject(d, job, err,
                                  "job \"%.64s\" is not allowed: jobs are chief, "
                                  "worker, ps and evaluator; rename it, or skip it with "
                                  "--ignore-jobs %.64s",
                                  job->string, job->string);
        if (d->has_job[type])
            return cluster_reject(d, job, err,
                                  "both \"master\" and \"chief\" are listed, and \"master\" is "
                                  "another name of \"chief\"; keep one of them");
        d->has_job[type] = true;
        d->job[type] = job;
        rc = read_job(d, type, job, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- the task --- */

static int read_index(struct cluster_draft *d, const cJSON *v, struct err *err)
{
    char found[DESCRIBE_BYTES];
    const char *text = cJSON_IsNumber(v)   ? json_number_text(d->doc, v)
                       : cJSON_IsString(v) ? v->valuestring
                                           : NULL;
    bool is_int = cluster_python_int(d->doc, v, &d->text_task.index);
    uint64_t plain;

    if (text != NULL && text_u64(text, INT64_MAX, &plain)) {
        d->text_task.index = (int64_t)plain;
        return 0;
    }
    json_describe(d->doc, v, found, sizeof(found));
    if (!is_int)
        return cluster_reject(d, v, err, "task index must be an integer such as 0, found %s",
                              found);
    if (!cluster_is_strict(d))
        return 0;
    if (d->text_task.index < 0)
        return cluster_reject(d, v, err, "task index is negative, found %s; indices count from 0",
                              found);
    return cluster_reject(
        d, v, err, "task index must be a plain integer, found %s; write %lld if that is meant",
        found, (long long)d->text_task.index);
}

static int read_task(struct cluster_draft *d, const cJSON *task, struct err *err)
{
    char found[DESCRIBE_BYTES];
    int rc;

    if (task == NULL)
        return 0;
    d->text_task.at = task;
    rc = look_up(d, task, "task", "type", &d->text_task.type_at, err);
    if (rc < 0)
        return rc;
    rc = look_up(d, task, "task", "index", &d->text_task.index_at, err);
    if (rc < 0)
        return rc;
    if (d->text_task.type_at != NULL && cJSON_IsString(d->text_task.type_at)) {
        d->text_task.type = d->text_task.type_at->valuestring;
    } else if (d->text_task.type_at != NULL && cluster_is_strict(d)) {
        json_describe(d->doc, d->text_task.type_at, found, sizeof(found));
        return cluster_reject(d, d->text_task.type_at, err,
                              "task type must be a string such as "
                              "\"worker\", found %s",
                              found);
    }
    return d->text_task.index_at != NULL ? read_index(d, d->text_task.index_at, err) : 0;
}

/* --- the document --- */

static int read_root(struct cluster_draft *d, const cJSON *root, struct err *err)
{
    const cJSON *cluster, *task, *rpc_layer;
    int rc;

    rc = look_up(d, root, d->label, "cluster", &cluster, err);
    if (rc == 0)
        rc = look_up(d, root, d->label, "task", &task, err);
    if (rc == 0)
        rc = look_up(d, root, d->label, "rpc_layer", &rpc_layer, err);
    if (rc == 0)
        rc = read_rpc_layer(d, rpc_layer, err);
    if (rc == 0 && cJSON_IsObject(root))
        rc = check_keys(d, root, err);
    if (rc == 0 && cluster != NULL)
        rc = read_jobs(d, cluster, err);
    if (rc < 0)
        return rc;
    /* --task takes precedence over the text, so an invalid task in the text is only a note. */
    rc = read_task(d, task, d->opts->task == NULL ? err : NULL);
    if (rc < 0 && d->opts->task != NULL) {
        cluster_note(d, "the task of %s cannot be read; --task is used instead", d->label);
        d->text_task = (struct cluster_text_task){ .at = task };
        rc = 0;
    }
    return rc;
}

int cluster_read_json(struct cluster_draft *d, const char *text, size_t n, struct err *err)
{
    bool is_strict = cluster_is_strict(d);
    int rc;

    if (!is_strict && text_starts(text, "\xef\xbb\xbf"))
        return cluster_reject(d, NULL, err,
                              "begins with a byte order mark, which TensorFlow rejects: save it as "
                              "UTF-8 without one, or use the strict profile");
    rc = json_parse(d->label, text, n, is_strict ? 0 : JSON_LAST_DUPLICATE_WINS, &d->doc, err);
    if (rc < 0)
        return rc;
    return read_root(d, json_root(d->doc), err);
}
