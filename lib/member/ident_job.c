/* ident_job.c - names the keys of two jobs that differ. */
#include "member/member_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

enum { KEYS_MAX = 5, VALUE_BYTES = 80, PATH_BYTES = 160 };

struct comparison {
    char *out;
    size_t room, used;
    uint32_t n; /* keys that differ */
};

static void print_value(const cJSON *value, char out[VALUE_BYTES])
{
    if (value == NULL)
        snprintf(out, VALUE_BYTES, "nothing");
    else if (!cJSON_PrintPreallocated((cJSON *)(uintptr_t)value, out, VALUE_BYTES, false))
        snprintf(out, VALUE_BYTES, "another value"); /* longer than the buffer */
}

static void add(struct comparison *c, const char *path, const cJSON *theirs, const cJSON *ours)
{
    char a[VALUE_BYTES], b[VALUE_BYTES];
    int n;

    if (++c->n > KEYS_MAX || c->used >= c->room)
        return;
    print_value(theirs, a);
    print_value(ours, b);
    n = snprintf(c->out + c->used, c->room - c->used, "%s%s: it has %s, the coordinator has %s",
                 c->n > 1 ? "; " : "", path, a, b);
    c->used += n > 0 ? (size_t)n : 0;
}

static void compare(struct comparison *c, const char *path, const cJSON *theirs, const cJSON *ours);

/* Compares the members of `list`, or only those that `other` lacks. is_ours: `list` is ours. */
static void compare_members(struct comparison *c, const char *path, const cJSON *list,
                            const cJSON *other, bool is_ours)
{
    for (const cJSON *m = list->child; m != NULL; m = m->next) {
        const cJSON *same = cJSON_GetObjectItemCaseSensitive(other, m->string);
        char name[PATH_BYTES];

        if (is_ours && same != NULL)
            continue; /* compared before */
        snprintf(name, sizeof(name), "%.100s/%.50s", path, m->string);
        compare(c, name, is_ours ? NULL : m, is_ours ? m : same);
    }
}

/* The depth of the recursion is that of the documents, JSON_MAX_DEPTH at most. */
static void compare(struct comparison *c, const char *path, const cJSON *theirs, const cJSON *ours)
{
    if (cJSON_IsObject(theirs) && cJSON_IsObject(ours)) {
        compare_members(c, path, theirs, ours, false);
        compare_members(c, path, ours, theirs, true);
    } else if (theirs == NULL || ours == NULL || !cJSON_Compare(theirs, ours, true)) {
        add(c, path, theirs, ours);
    }
}

bool member_job_difference(const char *theirs, const char *ours, char *out, size_t n)
{
    struct comparison c = { .out = out, .room = n };
    struct json *a = NULL, *b = NULL;

    out[0] = '\0';
    if (theirs != NULL && ours != NULL &&
        json_parse("job", theirs, strlen(theirs), 0, &a, NULL) == 0 &&
        json_parse("job", ours, strlen(ours), 0, &b, NULL) == 0)
        compare(&c, "", json_root(a), json_root(b));
    if (c.n > KEYS_MAX && c.used < n)
        snprintf(out + c.used, n - c.used, "; and %u more keys", (unsigned)(c.n - KEYS_MAX));
    out[text_utf8_cut(out, strlen(out))] = '\0';
    json_free(a);
    json_free(b);
    return c.n > 0;
}
