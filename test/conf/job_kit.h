/* job_kit.h - jobs for the tests: a small valid job, and patches of it. Include after cmocka.h.
 *
 * The texts use ' in place of ", which makes the rows readable. */
#ifndef TEST_CONF_JOB_KIT_H
#define TEST_CONF_JOB_KIT_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/err.h"
#include "conf/job.h"

enum { JOB_MAX_PATCHES = 3 };

struct job_patch {
    const char *pointer; /* "/train/steps"; the parent must exist */
    const char *value;   /* the new JSON value; NULL: the key is removed */
};

/* clang-format off */
/* One, two, three patches. */
#define P1(a_, b_) { { a_, b_ } }
#define P2(a_, b_, c_, d_) { { a_, b_ }, { c_, d_ } }
#define P3(a_, b_, c_, d_, e_, f_) { { a_, b_ }, { c_, d_ }, { e_, f_ } }
/* clang-format on */

/* The job that the patches change. */
static const char job_base[] =
    "{ 'model': { 'onnx': 'net.onnx', 'inputs': { 'image': 'x', 'extra': 'y' },"
    "             'loss': { 'type': 'softmax_cross_entropy', 'logits': 'z', 'labels': 'label' } },"
    "  'data': { 'train': 'train-*', 'features': {"
    "             'image': { 'dtype': 'uint8', 'shape': [1, 8, 8] },"
    "             'extra': { 'dtype': 'float32', 'shape': [3] },"
    "             'label': { 'dtype': 'int64', 'shape': [] } } },"
    "  'train': { 'steps': 100, 'global_batch_size': 64 },"
    "  'optimizer': { 'type': 'sgd', 'learning_rate': 0.1 } }";

/* Returns a copy of `text` with " in place of '. The caller frees it. */
static inline char *job_quoted(const char *text)
{
    char *s = strdup(text);

    assert(s != NULL);
    for (char *c = s; *c != '\0'; c++)
        if (*c == '\'')
            *c = '"';
    return s;
}

static inline void job_apply(cJSON *root, const struct job_patch *p)
{
    char *path = strdup(p->pointer), *slash = strrchr(path, '/'), *rest = NULL;
    cJSON *parent = root;

    *slash = '\0';
    for (char *name = strtok_r(path, "/", &rest); name != NULL; name = strtok_r(NULL, "/", &rest))
        parent = cJSON_GetObjectItemCaseSensitive(parent, name);
    assert(parent != NULL);
    cJSON_DeleteItemFromObjectCaseSensitive(parent, slash + 1);
    if (p->value != NULL) {
        char *value = job_quoted(p->value);

        cJSON_AddItemToObject(parent, slash + 1, cJSON_CreateRaw(value));
        free(value);
    }
    free(path);
}

/* Returns job_base with the patches, on one line. The caller frees it. A patched value is raw text,
 * so a later patch cannot change a part of it. */
static inline char *job_text(const struct job_patch patches[JOB_MAX_PATCHES])
{
    char *base = job_quoted(job_base), *text;
    cJSON *root = cJSON_Parse(base);

    assert(root != NULL);
    for (size_t i = 0; i < JOB_MAX_PATCHES && patches[i].pointer != NULL; i++)
        job_apply(root, &patches[i]);
    text = cJSON_PrintUnformatted(root);
    assert(text != NULL);
    cJSON_Delete(root);
    free(base);
    return text;
}

/* Returns the job of a valid text. The caller frees it. */
static inline struct conf *job_parsed(const char *path, const char *text)
{
    struct conf *c = NULL;
    struct err err = { 0 };

    if (conf_parse(path, text, strlen(text), &c, &err) != 0)
        fail_msg("%s\n%s", err.text, text);
    return c;
}

static inline struct conf *job_patched(const struct job_patch patches[JOB_MAX_PATCHES])
{
    char *text = job_text(patches);
    struct conf *c = job_parsed("/jobs/job.json", text);

    free(text);
    return c;
}

#endif
