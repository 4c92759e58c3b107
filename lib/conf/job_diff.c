/* job_diff.c - compares two jobs key by key. Values are equal if they are printed equally. */
#include "conf/job_diff.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "conf/job_keys.h"
#include "conf/job_print.h"

struct differ {
    const char *was, *now; /* struct conf */
    struct buf from, to;   /* the printed values */
    bool failed;           /* out of memory */
    void (*each)(void *arg, const struct conf_change *change);
    void *arg;
};

static void compare(struct differ *d, const struct conf_key *k, const char *path)
{
    bool is_list =
        k->type == CONF_KEY_LIST || k->type == CONF_KEY_MAP || k->type == CONF_KEY_CHOICE;
    struct conf_change change = { .pointer = path, .is_live = (k->flags & CONF_KEY_LIVE) != 0 };

    buf_reset(&d->from);
    buf_reset(&d->to);
    conf_print_value(k, d->was, &d->from);
    conf_print_value(k, d->now, &d->to);
    d->failed = d->failed || d->from.failed || d->to.failed;
    if (d->failed || strcmp(d->from.data, d->to.data) == 0)
        return;
    if (!is_list) {
        change.from = d->from.data;
        change.to = d->to.data;
    }
    d->each(d->arg, &change);
}

/* Compares the keys of an object. The base of every value is the job itself: lists and maps, whose
 * items have another base, are compared as a whole. */
static void compare_object(struct differ *d, const char *parent)
{
    char path[CONF_KEY_PATH_BYTES];

    for (const struct conf_key *k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        conf_key_path(k, path);
        if (k->type != CONF_KEY_OBJECT) {
            compare(d, k, path);
            continue;
        }
        if (k->flags & CONF_KEY_OPTIONAL && conf_key_is_given(k, d->was) != conf_key_is_given(k, d->now))
            /* the absence of an object is one change, whatever its keys are */
            d->each(d->arg, &(struct conf_change){ .pointer = path,
                                                   .from = conf_key_is_given(k, d->was) ? "{}" : "nothing",
                                                   .to = conf_key_is_given(k, d->now) ? "{}" : "nothing" });
        else if (k->flags & CONF_KEY_OPTIONAL && !conf_key_is_given(k, d->now))
            continue;
        else
            compare_object(d, path);
    }
}

int conf_diff(const struct conf *was, const struct conf *now,
              void (*each)(void *arg, const struct conf_change *change), void *arg, struct err *err)
{
    struct differ d = { .was = (const char *)was, .now = (const char *)now, .each = each, .arg = arg };
    int rc = 0;

    compare_object(&d, "");
    if (d.failed)
        rc = err_set(err, ERR_NOMEM, "job file '%s': out of memory", now->path);
    buf_fini(&d.from);
    buf_fini(&d.to);
    return rc;
}
