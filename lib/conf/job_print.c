/* job_print.c - struct conf back into JSON: for people, a job file in which nothing is left out;
 * for the digest, the same without what may change in the middle of a run. */
#include "conf/job_print.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "conf/job_keys.h"
#include "conf/job_out.h"

struct printer {
    struct conf_out out;
    bool is_canonical; /* for the digest */
};

static void print_object(struct printer *p, const char *parent, const char *base);
static void print_items(struct printer *p, const struct conf_key *k, const char *key,
                        const char *base);

/* The folder of a path differs from host to host; what is in the file is checked elsewhere. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static void print_ports(struct buf *b, const struct conf_ports *p)
{
    if (p->first == 0)
        buf_str(b, "null");
    else if (p->first == p->last)
        buf_printf(b, "%" PRIu32, p->first);
    else
        buf_printf(b, "\"%" PRIu32 "-%" PRIu32 "\"", p->first, p->last);
}

static void print_scalar(struct printer *p, const struct conf_key *k, const char *at)
{
    struct buf *b = p->out.buf;
    const char *s;

    switch (k->type) {
    case CONF_KEY_STRING:
    case CONF_KEY_PATH:
        s = *(const char *const *)at;
        if (s == NULL)
            buf_str(b, "null");
        else
            buf_json(b, p->is_canonical && k->type == CONF_KEY_PATH ? last_part(s) : s);
        return;
    case CONF_KEY_BOOL:
        buf_str(b, *(const bool *)at ? "true" : "false");
        return;
    case CONF_KEY_ENUM:
        buf_json(b, k->words[*(const unsigned *)at]);
        return;
    case CONF_KEY_U32:
        buf_printf(b, "%" PRIu32, *(const uint32_t *)at);
        return;
    case CONF_KEY_U64:
        buf_printf(b, "%" PRIu64, *(const uint64_t *)at);
        return;
    case CONF_KEY_F64:
        buf_f64(b, *(const double *)at);
        return;
    case CONF_KEY_PORTS:
        print_ports(b, (const struct conf_ports *)at);
        return;
    case CONF_KEY_OBJECT:
    case CONF_KEY_LIST:
    case CONF_KEY_MAP:
        break;
    }
    CHECK(!"not a scalar");
}

/* One entry of a list or map under `key`, NULL in a list. */
static void print_item(struct printer *p, const struct conf_key *item, const char *key,
                       const char *at)
{
    char path[CONF_KEY_PATH_BYTES];

    conf_key_path(item, path);
    if (item->type == CONF_KEY_OBJECT) {
        conf_out_open(&p->out, key, '{');
        print_object(p, path, at);
        conf_out_close(&p->out, '}');
    } else if (item->type == CONF_KEY_LIST) {
        print_items(p, item, key, at);
    } else {
        conf_out_key(&p->out, key);
        print_scalar(p, item, at + item->at);
    }
}

/* [a, b] on one line, or entries a line each: [{...}, ...] and {"name": value, ...}. */
static void print_items(struct printer *p, const struct conf_key *k, const char *key,
                        const char *base)
{
    const char *items = base + k->at;
    uint32_t n = *(const uint32_t *)(base + k->count);
    const struct conf_key *item;
    char path[CONF_KEY_PATH_BYTES];

    conf_key_path(k, path);
    item = conf_key_find(path, "*");
    if (k->flags & CONF_KEY_ALLOCATED)
        items = *(const char *const *)items;
    if (k->type == CONF_KEY_LIST && item->type != CONF_KEY_OBJECT) {
        conf_out_key(&p->out, key);
        buf_str(p->out.buf, "[");
        for (uint32_t i = 0; i < n; i++) {
            buf_str(p->out.buf, i == 0 ? "" : ", ");
            print_scalar(p, item, items + i * k->stride);
        }
        buf_str(p->out.buf, "]");
        return;
    }
    conf_out_open(&p->out, key, k->type == CONF_KEY_LIST ? '[' : '{');
    for (uint32_t i = 0; i < n; i++) {
        const char *at = items + i * k->stride;

        print_item(p, item, k->type == CONF_KEY_LIST ? NULL : *(const char *const *)at, at);
    }
    conf_out_close(&p->out, k->type == CONF_KEY_LIST ? ']' : '}');
}

/* What does not apply, and of two that exclude each other the one not given (it is 0), would be
 * refused in a job file. */
static bool is_printed(const struct printer *p, const struct conf_key *k, const char *base)
{
    if (p->is_canonical && k->flags & CONF_KEY_FREE)
        return false;
    if (k->instead != NULL && k->type == CONF_KEY_PATH)
        return *(const char *const *)(base + k->at) != NULL;
    if (k->instead != NULL && k->type == CONF_KEY_LIST)
        return *(const uint32_t *)(base + k->count) != 0;
    if (k->instead != NULL && k->type == CONF_KEY_U64)
        return *(const uint64_t *)(base + k->at) != 0;
    if (k->instead != NULL)
        return *(const uint32_t *)(base + k->at) != 0;
    return conf_key_applies(k, base);
}

static void print_object(struct printer *p, const char *parent, const char *base)
{
    char path[CONF_KEY_PATH_BYTES];

    for (const struct conf_key *k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        if (!is_printed(p, k, base))
            continue;
        if (k->type == CONF_KEY_OBJECT) {
            conf_key_path(k, path);
            conf_out_open(&p->out, k->name, '{');
            print_object(p, path, base);
            conf_out_close(&p->out, '}');
        } else if (k->type == CONF_KEY_LIST || k->type == CONF_KEY_MAP) {
            print_items(p, k, k->name, base);
        } else {
            conf_out_key(&p->out, k->name);
            print_scalar(p, k, base + k->at);
        }
    }
}

void conf_job_value(const struct conf_key *k, const void *base, struct buf *out)
{
    struct printer p = { .out = { .buf = out } };

    if (!is_printed(&p, k, base))
        buf_str(out, "nothing");
    else if (k->type == CONF_KEY_LIST || k->type == CONF_KEY_MAP)
        print_items(&p, k, k->name, base);
    else
        print_scalar(&p, k, (const char *)base + k->at);
}

static void print_job(const struct conf *c, struct buf *out, bool is_canonical)
{
    struct printer p = { .out = { .buf = out }, .is_canonical = is_canonical };

    conf_out_open(&p.out, NULL, '{');
    print_object(&p, "", (const char *)c);
    conf_out_close(&p.out, '}');
    buf_str(out, "\n");
}

void conf_print(const struct conf *c, struct buf *out)
{
    print_job(c, out, false);
}

void conf_job_canonical(const struct conf *c, struct buf *out)
{
    print_job(c, out, true);
}
