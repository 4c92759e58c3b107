/* job_schema.c - prints the table of keys as JSON Schema (draft 2020-12).
 *
 * Only the reader checks contradictions that a schema cannot express (an unknown feature, a batch
 * that the lanes cannot divide), and rejects 64.0 as an integer, which a schema accepts as 64. */
#include "conf/job_schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "conf/job_keys.h"
#include "conf/job_out.h"

static void schema_object(struct conf_out *o, const char *parent);

static void member(struct conf_out *o, const char *key, const char *text)
{
    conf_out_key(o, key);
    buf_json(o->buf, text);
}

static void bound_u64(struct conf_out *o, const char *key, uint64_t bound)
{
    conf_out_key(o, key);
    buf_printf(o->buf, "%" PRIu64, bound);
}

static void bound_f64(struct conf_out *o, const char *key, double bound)
{
    conf_out_key(o, key);
    buf_f64(o->buf, bound);
}

/* Is word i in a mask as in `when`? */
static bool is_in(const struct conf_key *k, uint32_t i, uint32_t mask)
{
    return mask == UINT32_MAX || mask >> k->words[i].value & 1u;
}

/* Prints a member with the list of the words whose bits are set in `mask`. */
static void words(struct conf_out *o, const char *key, const struct conf_key *k, uint32_t mask)
{
    bool is_first = true;

    conf_out_key(o, key);
    buf_str(o->buf, "[");
    for (uint32_t i = 0; i < k->n_words; i++) {
        if (!is_in(k, i, mask))
            continue;
        buf_str(o->buf, is_first ? "" : ", ");
        buf_json(o->buf, k->words[i].word);
        is_first = false;
    }
    buf_str(o->buf, "]");
}

static void require_one(struct conf_out *o, const char *key, const char *name)
{
    conf_out_key(o, key);
    buf_str(o->buf, "[");
    buf_json(o->buf, name);
    buf_str(o->buf, "]");
}

static void type(struct conf_out *o, const struct conf_key *k, const char *name)
{
    conf_out_key(o, "type");
    buf_printf(o->buf, k->flags & CONF_KEY_NULLABLE ? "[\"%s\", \"null\"]" : "\"%s\"", name);
}

static void schema_value(struct conf_out *o, const struct conf_key *k);

static void schema_items(struct conf_out *o, const struct conf_key *k)
{
    bool is_list = k->type != CONF_KEY_MAP;
    const struct conf_key *item;
    char path[CONF_KEY_PATH_BYTES];

    conf_key_path(k, path);
    item = conf_key_find(path, "*");
    type(o, k, is_list ? "array" : "object");
    bound_u64(o, is_list ? "minItems" : "minProperties", k->lo);
    bound_u64(o, is_list ? "maxItems" : "maxProperties", k->hi);
    if (k->flags & CONF_KEY_UNIQUE) {
        conf_out_key(o, "uniqueItems");
        buf_str(o->buf, "true");
    }
    if (!is_list) {
        conf_out_open(o, "propertyNames", '{');
        bound_u64(o, "minLength", 1);
        conf_out_close(o, '}');
    }
    conf_out_open(o, is_list ? "items" : "additionalProperties", '{');
    schema_value(o, item);
    conf_out_close(o, '}');
}

/* Prints the schema of a range of ports. The keywords of a type apply only to values of that
 * type. */
static void schema_ports(struct conf_out *o, const struct conf_key *k)
{
    conf_out_key(o, "type");
    buf_printf(o->buf, "[\"integer\", \"string\", \"array\"%s]",
               k->flags & CONF_KEY_NULLABLE ? ", \"null\"" : "");
    bound_u64(o, "minimum", k->lo);
    bound_u64(o, "maximum", k->hi);
    member(o, "pattern", "^[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?$");
    bound_u64(o, "minItems", 2);
    bound_u64(o, "maxItems", 2);
    conf_out_open(o, "items", '{');
    member(o, "description", "The first and the last port.");
    member(o, "type", "integer");
    bound_u64(o, "minimum", k->lo);
    bound_u64(o, "maximum", k->hi);
    conf_out_close(o, '}');
}

/* Prints the schema of a word or a list. */
static void schema_choice(struct conf_out *o, const struct conf_key *k)
{
    conf_out_open(o, "anyOf", '[');
    conf_out_open(o, NULL, '{');
    words(o, "enum", k, UINT32_MAX);
    conf_out_close(o, '}');
    conf_out_open(o, NULL, '{');
    schema_items(o, k);
    conf_out_close(o, '}');
    conf_out_close(o, ']');
}

/* Prints the schema of an integer or an object. */
static void schema_count_or_object(struct conf_out *o, const struct conf_key *k)
{
    char path[CONF_KEY_PATH_BYTES];

    conf_key_path(k, path);
    conf_out_open(o, "anyOf", '[');
    conf_out_open(o, NULL, '{');
    member(o, "type", "integer");
    bound_u64(o, "minimum", k->lo);
    bound_u64(o, "maximum", k->hi);
    conf_out_close(o, '}');
    conf_out_open(o, NULL, '{');
    schema_object(o, path);
    conf_out_close(o, '}');
    conf_out_close(o, ']');
}

/* Prints the schema of an integer or a word. */
static void schema_count_or_word(struct conf_out *o, const struct conf_key *k)
{
    conf_out_open(o, "anyOf", '[');
    conf_out_open(o, NULL, '{');
    member(o, "type", "integer");
    bound_u64(o, "minimum", k->lo);
    bound_u64(o, "maximum", k->hi);
    conf_out_close(o, '}');
    conf_out_open(o, NULL, '{');
    words(o, "enum", k, UINT32_MAX);
    conf_out_close(o, '}');
    conf_out_close(o, ']');
}

static void describe(struct conf_out *o, const struct conf_key *k)
{
    char text[1024];

    snprintf(text, sizeof(text), "%s%s", k->doc,
             k->flags & CONF_KEY_LIVE ? " SIGHUP reads it again while the job runs." : "");
    member(o, "description", text);
}

/* Prints the members of the schema of one value. */
static void schema_value(struct conf_out *o, const struct conf_key *k)
{
    bool above = (k->flags & CONF_KEY_ABOVE_MIN) != 0, below = (k->flags & CONF_KEY_BELOW_MAX) != 0;
    bool has_words =
        k->type == CONF_KEY_ENUM || k->type == CONF_KEY_EITHER || k->type == CONF_KEY_CHOICE;
    char path[CONF_KEY_PATH_BYTES];

    describe(o, k);
    switch (k->type) {
    case CONF_KEY_OBJECT:
        conf_key_path(k, path);
        schema_object(o, path);
        break;
    case CONF_KEY_STRING:
    case CONF_KEY_PATH:
        type(o, k, "string");
        bound_u64(o, "minLength", 1);
        break;
    case CONF_KEY_BOOL:
        type(o, k, "boolean");
        break;
    case CONF_KEY_ENUM:
    case CONF_KEY_EITHER:
        words(o, "enum", k, UINT32_MAX);
        break;
    case CONF_KEY_U32:
    case CONF_KEY_U64:
        type(o, k, "integer");
        bound_u64(o, "minimum", k->lo);
        bound_u64(o, "maximum", k->hi);
        break;
    case CONF_KEY_F64:
        type(o, k, "number");
        bound_f64(o, above ? "exclusiveMinimum" : "minimum", k->min);
        bound_f64(o, below ? "exclusiveMaximum" : "maximum", k->max);
        break;
    case CONF_KEY_PORTS:
        schema_ports(o, k);
        break;
    case CONF_KEY_LIST:
    case CONF_KEY_MAP:
        schema_items(o, k);
        break;
    case CONF_KEY_CHOICE:
        schema_choice(o, k);
        break;
    case CONF_KEY_COUNT_OR_OBJECT:
        schema_count_or_object(o, k);
        break;
    case CONF_KEY_COUNT_OR_WORD:
        schema_count_or_word(o, k);
        break;
    }
    if (k->fallback != NULL) {
        conf_out_key(o, "default");
        buf_printf(o->buf, has_words ? "\"%s\"" : "%s", k->fallback);
    }
}

/* Prints the rule that exactly one of two keys is given. */
static void rule_instead(struct conf_out *o, const struct conf_key *k)
{
    const char *names[] = { k->name, k->instead };

    conf_out_open(o, NULL, '{');
    conf_out_open(o, "oneOf", '[');
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        conf_out_open(o, NULL, '{');
        require_one(o, "required", names[i]);
        conf_out_close(o, '}');
    }
    conf_out_close(o, ']');
    conf_out_close(o, '}');
}

/* Prints the rule of a key that applies only to some words of a sibling: if the sibling has one of
 * them, the key is required (with CONF_KEY_REQUIRED), else it is not allowed. An absent sibling has
 * its default. */
static void rule_when(struct conf_out *o, const struct conf_key *k)
{
    const struct conf_key *on = conf_key_find(k->parent, k->when.key);
    bool is_default = false;

    for (uint32_t i = 0; i < on->n_words; i++)
        if (is_in(on, i, k->when.words) && on->fallback != NULL)
            is_default = is_default || strcmp(on->words[i].word, on->fallback) == 0;
    conf_out_open(o, NULL, '{');
    conf_out_open(o, "if", '{');
    conf_out_open(o, "properties", '{');
    conf_out_open(o, on->name, '{');
    words(o, "enum", on, k->when.words);
    conf_out_close(o, '}');
    conf_out_close(o, '}');
    if (!is_default)
        require_one(o, "required", on->name);
    conf_out_close(o, '}');
    if (k->flags & CONF_KEY_REQUIRED) {
        conf_out_open(o, "then", '{');
        require_one(o, "required", k->name);
        conf_out_close(o, '}');
    }
    conf_out_open(o, "else", '{');
    conf_out_open(o, "properties", '{');
    conf_out_key(o, k->name);
    buf_str(o->buf, "false");
    conf_out_close(o, '}');
    conf_out_close(o, '}');
    conf_out_close(o, '}');
}

/* Whether a row has a rule. Two keys that exclude each other have one rule, at the first of their
 * rows. */
static bool has_rule(const struct conf_key *k)
{
    return k->when.key != NULL || (k->instead != NULL && conf_key_find(k->parent, k->instead) > k);
}

static void schema_rules(struct conf_out *o, const char *parent)
{
    bool is_open = false;

    for (const struct conf_key *k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        if (!has_rule(k))
            continue;
        if (!is_open)
            conf_out_open(o, "allOf", '[');
        is_open = true;
        if (k->when.key != NULL)
            rule_when(o, k);
        else
            rule_instead(o, k);
    }
    if (is_open)
        conf_out_close(o, ']');
}

/* Prints the members of the schema of an object, whose keys are the rows of `parent`. */
static void schema_object(struct conf_out *o, const char *parent)
{
    const struct conf_key *k;
    bool is_first = true;

    member(o, "type", "object");
    conf_out_key(o, "additionalProperties");
    buf_str(o->buf, "false");
    conf_out_key(o, "required");
    buf_str(o->buf, "[");
    for (k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        if (!(k->flags & CONF_KEY_REQUIRED) || k->when.key != NULL)
            continue;
        buf_str(o->buf, is_first ? "" : ", ");
        buf_json(o->buf, k->name);
        is_first = false;
    }
    buf_str(o->buf, "]");
    conf_out_open(o, "properties", '{');
    if (parent[0] == '\0') { /* with which editors find this schema; conf_read() ignores it */
        conf_out_open(o, "$schema", '{');
        member(o, "type", "string");
        member(o, "description",
               "The address or the path of this schema, for editors; trainerd ignores it.");
        conf_out_close(o, '}');
    }
    for (k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        conf_out_open(o, k->name, '{');
        schema_value(o, k);
        conf_out_close(o, '}');
    }
    conf_out_close(o, '}');
    schema_rules(o, parent);
}

void conf_schema(struct buf *out)
{
    struct conf_out o = { .buf = out };

    conf_out_open(&o, NULL, '{');
    member(&o, "$schema", "https://json-schema.org/draft/2020-12/schema");
    member(&o, "title", "trainerd job");
    member(&o, "description",
           "What trainerd --job FILE trains, and how. Paths are relative to FILE.");
    schema_object(&o, "");
    conf_out_close(&o, '}');
    buf_str(out, "\n");
}
