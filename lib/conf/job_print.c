/* job_print.c - prints a struct conf as JSON: as a job file with all keys, and in the canonical
 * form for the digest, without the keys that may change between two starts of a run. */
#include "conf/job_print.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "conf/job_keys.h"
#include "conf/job_out.h"

struct printer {
    struct conf_out out;
    bool is_canonical; /* prints the text for the digest */
};

static void print_object(struct printer *p, const char *parent, const char *base);
static void print_items(struct printer *p, const struct conf_key *k, const char *key,
                        const char *base);

/* Returns the name of a file without its folder, which differs between hosts. */
static const char *file_name(const char *path)
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
            buf_json(b, p->is_canonical && k->type == CONF_KEY_PATH ? file_name(s) : s);
        return;
    case CONF_KEY_BOOL:
        buf_str(b, *(const bool *)at ? "true" : "false");
        return;
    case CONF_KEY_ENUM:
        buf_json(b, conf_key_word(k, *(const unsigned *)at));
        return;
    case CONF_KEY_EITHER:
        buf_json(b, k->words[*(const bool *)at].word);
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
    case CONF_KEY_CHOICE:
    case CONF_KEY_COUNT_OR_OBJECT:
    case CONF_KEY_COUNT_OR_WORD:
        break;
    }
    CHECK(!"not a scalar");
}

/* Prints an entry of a list or map. `key` is NULL in a list. */
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

static bool has_items(const struct conf_key *k)
{
    return k->type == CONF_KEY_LIST || k->type == CONF_KEY_MAP || k->type == CONF_KEY_CHOICE;
}

/* Prints the word of a choice, a list of scalars on one line, [a, b], and other lists and maps with one entry per
 * line. */
static void print_items(struct printer *p, const struct conf_key *k, const char *key,
                        const char *base)
{
    bool is_list = k->type != CONF_KEY_MAP;
    const char *items = base + k->at;
    uint32_t n = *(const uint32_t *)(base + k->count);
    const struct conf_key *item;
    char path[CONF_KEY_PATH_BYTES];

    if (k->type == CONF_KEY_CHOICE && conf_key_chosen(k, base) != 0) {
        conf_out_key(&p->out, key);
        buf_json(p->out.buf, conf_key_word(k, conf_key_chosen(k, base)));
        return;
    }
    conf_key_path(k, path);
    item = conf_key_find(path, "*");
    if (k->flags & CONF_KEY_ALLOCATED)
        items = *(const char *const *)items;
    if (is_list && item->type != CONF_KEY_OBJECT) {
        conf_out_key(&p->out, key);
        buf_str(p->out.buf, "[");
        for (uint32_t i = 0; i < n; i++) {
            buf_str(p->out.buf, i == 0 ? "" : ", ");
            print_scalar(p, item, items + i * k->stride);
        }
        buf_str(p->out.buf, "]");
        return;
    }
    conf_out_open(&p->out, key, is_list ? '[' : '{');
    for (uint32_t i = 0; i < n; i++) {
        const char *at = items + i * k->stride;

        print_item(p, item, is_list ? NULL : *(const char *const *)at, at);
    }
    conf_out_close(&p->out, is_list ? ']' : '}');
}

/* Whether a key is printed. Optional objects and lists that are absent are omitted, and two kinds of keys that
 * a job file may not have: keys that do not apply, and of two keys that exclude each other the one that is not given (its
 * value is 0). */
static bool is_printed(const struct printer *p, const struct conf_key *k, const char *base)
{
    if (p->is_canonical && k->flags & CONF_KEY_FREE)
        return false;
    if (k->flags & CONF_KEY_OPTIONAL)
        return conf_key_is_given(k, base);
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

static void print_count_or_word(struct printer *p, const struct conf_key *k, const char *base)
{
    unsigned word = conf_key_chosen(k, base);

    conf_out_key(&p->out, k->name);
    if (word != 0)
        buf_json(p->out.buf, conf_key_word(k, word));
    else
        buf_printf(p->out.buf, "%" PRIu64, *(const uint64_t *)(const void *)(base + k->at));
}

static void print_object(struct printer *p, const char *parent, const char *base)
{
    char path[CONF_KEY_PATH_BYTES];

    for (const struct conf_key *k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        if (!is_printed(p, k, base))
            continue;
        if (k->type == CONF_KEY_COUNT_OR_OBJECT && *(const uint32_t *)(base + k->at) != 0) {
            conf_out_key(&p->out, k->name);
            buf_printf(p->out.buf, "%" PRIu32, *(const uint32_t *)(base + k->at));
        } else if (k->type == CONF_KEY_OBJECT || k->type == CONF_KEY_COUNT_OR_OBJECT) {
            conf_key_path(k, path);
            conf_out_open(&p->out, k->name, '{');
            print_object(p, path, base);
            conf_out_close(&p->out, '}');
        } else if (k->type == CONF_KEY_COUNT_OR_WORD) {
            print_count_or_word(p, k, base);
        } else if (has_items(k)) {
            print_items(p, k, k->name, base);
        } else {
            conf_out_key(&p->out, k->name);
            print_scalar(p, k, base + k->at);
        }
    }
}

void conf_print_value(const struct conf_key *k, const void *base, struct buf *out)
{
    struct printer p = { .out = { .buf = out } };

    if (!is_printed(&p, k, base))
        buf_str(out, "nothing");
    else if (has_items(k))
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

void conf_print_canonical(const struct conf *c, struct buf *out)
{
    print_job(c, out, true);
}
