/* job_read.c - reads the JSON document of a job file into a struct conf, as the table of keys
 * describes. */
#include "conf/job_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/text.h"
#include "conf/job_keys.h"

struct reader {
    const struct json *doc;
    struct conf *c;
    struct err *err;
};

/* The JSON types that each type of key accepts. */
static const struct {
    int json; /* bits of cJSON types */
    const char *expected;
} kinds[] = {
    [CONF_KEY_OBJECT] = { cJSON_Object, "an object" },
    [CONF_KEY_STRING] = { cJSON_String, "a string" },
    [CONF_KEY_PATH] = { cJSON_String, "a path as a string" },
    [CONF_KEY_BOOL] = { cJSON_True | cJSON_False, "true or false" },
    [CONF_KEY_ENUM] = { cJSON_String, "a string" },
    [CONF_KEY_EITHER] = { cJSON_String, "a string" },
    [CONF_KEY_U32] = { cJSON_Number, "an integer" },
    [CONF_KEY_U64] = { cJSON_Number, "an integer" },
    [CONF_KEY_F64] = { cJSON_Number, "a number" },
    [CONF_KEY_PORTS] = { cJSON_Number | cJSON_String | cJSON_Array,
                         "a port or a range, as in 7000, \"7000-7010\" or [7000, 7010]" },
    [CONF_KEY_LIST] = { cJSON_Array, "an array" },
    [CONF_KEY_MAP] = { cJSON_Object, "an object" },
    [CONF_KEY_CHOICE] = { cJSON_String | cJSON_Array, "a word or an array" },
    [CONF_KEY_COUNT_OR_OBJECT] = { cJSON_Number | cJSON_Object, "an integer or an object" },
    [CONF_KEY_COUNT_OR_WORD] = { cJSON_Number | cJSON_String, "an integer or a word" },
};

enum { MAX_NAMES = 64, MAX_WORDS = 32, FOUND_BYTES = 96, LIST_BYTES = 512 };

static int read_object(const struct reader *r, const char *parent, const cJSON *object, char *base);
static int read_value(const struct reader *r, const struct conf_key *k, const cJSON *value,
                      char *base);

static int out_of_memory(const struct reader *r)
{
    return err_set(r->err, ERR_NOMEM, "job file '%s': out of memory", r->c->path);
}

const char *conf_resolve_path(struct arena *mem, const char *dir, const char *name)
{
    char *path = name[0] == '/' ? arena_strdup(mem, name) : arena_printf(mem, "%s/%s", dir, name);
    char *to = path;

    if (path == NULL)
        return NULL;
    for (const char *from = path; *from != '\0';) { /* `from` is never before `to` */
        size_t n;

        from += strspn(from, "/");
        n = strcspn(from, "/");
        if (n > 0 && !(n == 1 && from[0] == '.')) {
            *to++ = '/';
            memmove(to, from, n);
            to += n;
        }
        from += n;
    }
    if (to == path)
        *to++ = '/';
    *to = '\0';
    return path;
}

/* Writes the words as "a", "b", "c". */
static void quoted_list(char *out, size_t size, const char *const *words, size_t n)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s\"%s\"", i == 0 ? "" : ", ", words[i]);
}

/* Returns the name of a key that other programs call `word`, if it is one of the n known words; else NULL. */
static const char *other_name(const char *word, const char *const *known, size_t n)
{
    static const char *const names[][2] = {
        { "lr", "learning_rate" },          { "batch_size", "global_batch_size" },
        { "num_workers", "threads" },       { "num_epochs", "epochs" },
        { "max_steps", "steps" },           { "max_grad_norm", "clip_norm" },
        { "gradient_clip_val", "clip_norm" }, { "gradient_accumulation_steps", "lanes" },
        { "save_steps", "every_steps" },    { "betas", "beta1" },
    };

    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (size_t k = 0; k < n; k++)
            if (strcmp(names[i][0], word) == 0 && strcmp(names[i][1], known[k]) == 0)
                return names[i][1];
    return NULL;
}

/* Rejects a word that is not one of the `n` known words. The message has the most similar word if
 * the word may be a typo, else all known words. `what` describes the word. */
static int refuse_word(const struct reader *r, const cJSON *value, const char *what,
                       const char *word, const char *const *known, size_t n)
{
    const char *other = other_name(word, known, n);
    const char *near = other != NULL ? other : text_nearest(word, known, n);
    char list[LIST_BYTES];

    if (near != NULL)
        return json_error(r->doc, value, r->err, "%s \"%.64s\" is not known: did you mean \"%s\"?",
                          what, word, near);
    quoted_list(list, sizeof(list), known, n);
    return json_error(r->doc, value, r->err, "%s \"%.64s\" is not known; expected%s: %s", what,
                      word, n == 1 ? "" : " one of", list);
}

static int refuse_unknown_keys(const struct reader *r, const char *parent, const cJSON *object)
{
    const char *names[MAX_NAMES];
    size_t n = 0;

    for (const struct conf_key *k = NULL; (k = conf_key_next(parent, k)) != NULL;) {
        CHECK(n < MAX_NAMES);
        names[n++] = k->name;
    }
    for (const cJSON *v = object->child; v != NULL; v = v->next) {
        const struct conf_key *elsewhere;

        if (conf_key_find(parent, v->string) != NULL)
            continue;
        if (parent[0] == '\0' && strcmp(v->string, "$schema") == 0)
            continue; /* for editors */
        elsewhere = conf_key_find_unique(v->string);
        if (elsewhere != NULL)
            return json_error(
                r->doc, v, r->err, "\"%s\" is not allowed here: it is a key of %s", elsewhere->name,
                elsewhere->parent[0] == '\0' ? "the outermost object" : elsewhere->parent);
        return refuse_word(r, v, "the key", v->string, names, n);
    }
    return 0;
}

static int refuse_type(const struct reader *r, const struct conf_key *k, const cJSON *value)
{
    char found[FOUND_BYTES];

    json_describe(r->doc, value, found, sizeof(found));
    return json_error(r->doc, value, r->err, "expected %s%s, found %s", kinds[k->type].expected,
                      k->flags & CONF_KEY_NULLABLE ? " or null" : "", found);
}

/* Resolves a path; of a pattern, the name of the job's folder means itself. */
static const char *resolve(const struct reader *r, const struct conf_key *k, const char *s)
{
    const char *folder = r->c->directory;
    char *quoted;

    if ((k->flags & CONF_KEY_PATTERN) == 0)
        return conf_resolve_path(&r->c->mem, folder, s);
    quoted = arena_alloc(&r->c->mem, 2 * strlen(folder) + 1);
    if (quoted == NULL)
        return NULL;
    text_quote_pattern(folder, quoted);
    return conf_resolve_path(&r->c->mem, quoted, s);
}

static int read_string(const struct reader *r, const struct conf_key *k, const cJSON *value,
                       const char **out)
{
    const char *s = value->valuestring;
    struct err why;

    if (s[0] == '\0')
        return json_error(r->doc, value, r->err, "expected %s that is not empty%s",
                          kinds[k->type].expected,
                          k->flags & CONF_KEY_NULLABLE ? "; null means none" : "");
    if (k->type == CONF_KEY_PATH && fs_check_path(s, &why) < 0)
        return json_error(r->doc, value, r->err, "%s", why.text);
    *out = k->type == CONF_KEY_PATH ? resolve(r, k, s) : arena_strdup(&r->c->mem, s);
    return *out == NULL ? out_of_memory(r) : 0;
}

static int read_enum(const struct reader *r, const struct conf_key *k, const cJSON *value,
                     unsigned *out)
{
    const char *words[MAX_WORDS];

    if (conf_key_value(k, value->valuestring, out))
        return 0;
    for (uint32_t i = 0; i < k->n_words; i++)
        words[i] = k->words[i].word;
    return refuse_word(r, value, "the word", value->valuestring, words, k->n_words);
}

static int read_items(const struct reader *r, const struct conf_key *k, const cJSON *value,
                      char *base);

static int read_choice(const struct reader *r, const struct conf_key *k, const cJSON *value,
                       char *base)
{
    unsigned *word = (unsigned *)(base + k->chosen);

    if (cJSON_IsString(value))
        return read_enum(r, k, value, word);
    *word = 0;
    return read_items(r, k, value, base);
}

static int read_either(const struct reader *r, const struct conf_key *k, const cJSON *value,
                       bool *out)
{
    unsigned word = 0;
    int rc = read_enum(r, k, value, &word);

    if (rc == 0)
        *out = word != 0;
    return rc;
}

/* Reads an integer from its digits, because a double is not exact above 2^53. */
static int read_integer(const struct reader *r, const struct conf_key *k, const cJSON *value,
                        uint64_t *out)
{
    const char *text = json_number_text(r->doc, value);
    char found[FOUND_BYTES];

    if (strpbrk(text, ".eE") != NULL) {
        char remedy[FOUND_BYTES] = "";

        if (value->valuedouble >= 0 && value->valuedouble < 0x1p53 &&
            value->valuedouble == (double)(uint64_t)value->valuedouble)
            snprintf(remedy, sizeof(remedy), ": write %.0f", value->valuedouble);
        return json_error(r->doc, value, r->err, "expected an integer, digits only, found %.40s%s",
                          text, remedy);
    }
    if (text_u64(text, k->hi, out) && *out >= k->lo)
        return 0;
    json_describe(r->doc, value, found, sizeof(found));
    return json_error(r->doc, value, r->err,
                      "expected an integer from %" PRIu64 " to %" PRIu64 ", found %s", k->lo, k->hi,
                      found);
}

static int read_real(const struct reader *r, const struct conf_key *k, const cJSON *value,
                     double *out)
{
    /* -0 becomes 0, so that equal values are printed equally */
    double x = value->valuedouble + 0.0;
    bool above = (k->flags & CONF_KEY_ABOVE_MIN) != 0, below = (k->flags & CONF_KEY_BELOW_MAX) != 0;
    char found[FOUND_BYTES];

    if ((above ? x > k->min : x >= k->min) && (below ? x < k->max : x <= k->max)) {
        *out = x;
        return 0;
    }
    json_describe(r->doc, value, found, sizeof(found));
    return json_error(r->doc, value, r->err, "expected a number %s %.10g %s %.10g, found %s",
                      above ? "above" : "from", k->min, below ? "and below" : "to", k->max, found);
}

static int read_ports(const struct reader *r, const struct conf_key *k, const cJSON *value,
                      struct conf_ports *out)
{
    const char *text[2] = { "", "" };
    char first[8], found[FOUND_BYTES];
    uint64_t port[2];

    if (cJSON_IsNumber(value)) {
        text[0] = text[1] = json_number_text(r->doc, value);
    } else if (cJSON_IsString(value)) {
        size_t n = strcspn(value->valuestring, "-");

        snprintf(first, sizeof(first), "%.*s", n < sizeof(first) ? (int)n : 0, value->valuestring);
        text[0] = first;
        text[1] = value->valuestring[n] == '-' ? value->valuestring + n + 1 : first;
    } else if (cJSON_GetArraySize(value) == 2 && cJSON_IsNumber(value->child) &&
               cJSON_IsNumber(value->child->next)) {
        text[0] = json_number_text(r->doc, value->child);
        text[1] = json_number_text(r->doc, value->child->next);
    }
    for (int i = 0; i < 2; i++) {
        if (text_u64(text[i], k->hi, &port[i]) && port[i] >= (i == 0 ? k->lo : port[0]))
            continue;
        json_describe(r->doc, value, found, sizeof(found));
        return json_error(r->doc, value, r->err, "expected %s, ports from %" PRIu64 " to %" PRIu64 ", the lower one "
                          "first, found %s", kinds[k->type].expected, k->lo, k->hi, found);
    }
    *out = (struct conf_ports){ (uint32_t)port[0], (uint32_t)port[1] };
    return 0;
}

/* Returns the memory for n items: in the struct at `base`, or allocated, with a pointer in the
 * struct. NULL: out of memory. */
static char *item_storage(const struct reader *r, const struct conf_key *k, size_t n, char *base)
{
    void *items;

    if (!(k->flags & CONF_KEY_ALLOCATED))
        return base + k->at;
    items = arena_array(&r->c->mem, n + 1, k->stride);
    if (items != NULL)
        memcpy(base + k->at, &items, sizeof(items));
    return items;
}

/* Checks that item i, which was read from `value`, differs from the earlier items of `list`. */
static int check_unique(const struct reader *r, const struct conf_key *k, const char *items,
                        uint32_t i, const cJSON *list, const cJSON *value)
{
    for (uint32_t j = 0; j < i; j++)
        if (memcmp(items + j * k->stride, items + i * k->stride, k->stride) == 0)
            return json_error(r->doc, value, r->err, "is already listed at %s",
                              json_pointer(r->doc, cJSON_GetArrayItem(list, (int)j)));
    return 0;
}

/* Reads a list or map; the row "*" describes each value. */
static int read_items(const struct reader *r, const struct conf_key *k, const cJSON *value,
                      char *base)
{
    size_t n = (size_t)cJSON_GetArraySize(value);
    const struct conf_key *item;
    char path[CONF_KEY_PATH_BYTES], *items;
    uint32_t i = 0;
    int rc;

    conf_key_path(k, path);
    item = conf_key_find(path, "*");
    CHECK(item != NULL);
    if (n < k->lo || n > k->hi)
        return json_error(r->doc, value, r->err,
                          "expected %" PRIu64 " to %" PRIu64 " entries, found %zu", k->lo, k->hi,
                          n);
    items = item_storage(r, k, n, base);
    if (items == NULL)
        return out_of_memory(r);
    for (const cJSON *v = value->child; v != NULL; v = v->next, i++) {
        char *at = items + i * k->stride;

        if (k->type == CONF_KEY_MAP) {
            if (v->string[0] == '\0')
                return json_error(r->doc, v, r->err, "a name is missing before the colon: \"\"");
            *(const char **)at = arena_strdup(&r->c->mem, v->string);
            if (*(const char **)at == NULL)
                return out_of_memory(r);
        }
        rc = read_value(r, item, v, at);
        if (rc == 0 && k->flags & CONF_KEY_UNIQUE)
            rc = check_unique(r, k, items, i, value, v);
        if (rc < 0)
            return rc;
    }
    *(uint32_t *)(base + k->count) = i;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Reads a value. The offsets of the row are relative to `base`. */
static int read_value(const struct reader *r, const struct conf_key *k, const cJSON *value,
                      char *base)
{
    char path[CONF_KEY_PATH_BYTES], *at = base + k->at;
    uint64_t integer = 0;
    int rc = 0;

    if (cJSON_IsNull(value) && k->flags & CONF_KEY_NULLABLE)
        return 0; /* the struct is zeroed, so the pointer is NULL */
    if (!(value->type & kinds[k->type].json))
        return refuse_type(r, k, value);
    switch (k->type) {
    case CONF_KEY_OBJECT:
        if (k->flags & CONF_KEY_OPTIONAL)
            *(bool *)at = true;
        conf_key_path(k, path);
        return read_object(r, path, value, base);
    case CONF_KEY_CHOICE:
        return read_choice(r, k, value, base);
    case CONF_KEY_COUNT_OR_OBJECT:
        if (cJSON_IsNumber(value)) {
            rc = read_integer(r, k, value, &integer);
            *(uint32_t *)at = (uint32_t)integer;
            return rc;
        }
        conf_key_path(k, path);
        return read_object(r, path, value, base);
    case CONF_KEY_COUNT_OR_WORD:
        if (cJSON_IsString(value))
            return read_enum(r, k, value, (unsigned *)(base + k->chosen));
        return read_integer(r, k, value, (uint64_t *)at);
    case CONF_KEY_STRING:
    case CONF_KEY_PATH:
        return read_string(r, k, value, (const char **)at);
    case CONF_KEY_BOOL:
        *(bool *)at = cJSON_IsTrue(value);
        return 0;
    case CONF_KEY_ENUM:
        return read_enum(r, k, value, (unsigned *)at);
    case CONF_KEY_EITHER:
        return read_either(r, k, value, (bool *)at);
    case CONF_KEY_U32:
    case CONF_KEY_U64:
        rc = read_integer(r, k, value, &integer);
        if (rc == 0 && k->type == CONF_KEY_U32)
            *(uint32_t *)at = (uint32_t)integer;
        else if (rc == 0)
            *(uint64_t *)at = integer;
        return rc;
    case CONF_KEY_F64:
        return read_real(r, k, value, (double *)at);
    case CONF_KEY_PORTS:
        return read_ports(r, k, value, (struct conf_ports *)at);
    case CONF_KEY_LIST:
        return read_items(r, k, value, base);
    case CONF_KEY_MAP:
        rc = read_items(r, k, value, base);
        if (rc == 0)
            qsort(k->flags & CONF_KEY_ALLOCATED ? *(void **)at : at, *(uint32_t *)(base + k->count),
                  k->stride, compare_names);
        return rc;
    }
    CHECK(!"a type without a reader");
    return ERR_INPUT;
}

/* Sets the default of a key. The defaults null and [] and derived defaults are zero already. */
static void set_default(const struct conf_key *k, char *base)
{
    char *at = base + k->at;

    if (k->fallback == NULL)
        return;
    switch (k->type) {
    case CONF_KEY_BOOL:
        *(bool *)at = strcmp(k->fallback, "true") == 0;
        return;
    case CONF_KEY_ENUM:
        (void)conf_key_value(k, k->fallback, (unsigned *)at); /* a fallback is one of the words */
        return;
    case CONF_KEY_EITHER:
        *(bool *)at = strcmp(k->fallback, k->words[1].word) == 0;
        return;
    case CONF_KEY_U32:
        *(uint32_t *)at = (uint32_t)strtoul(k->fallback, NULL, 10);
        return;
    case CONF_KEY_U64:
        *(uint64_t *)at = strtoull(k->fallback, NULL, 10);
        return;
    case CONF_KEY_F64:
        *(double *)at = strtod(k->fallback, NULL);
        return;
    case CONF_KEY_CHOICE:
        (void)conf_key_value(k, k->fallback, (unsigned *)(base + k->chosen)); /* one of the words */
        return;
    case CONF_KEY_OBJECT:
    case CONF_KEY_STRING:
    case CONF_KEY_PATH:
    case CONF_KEY_PORTS:
    case CONF_KEY_LIST:
    case CONF_KEY_MAP:
    case CONF_KEY_COUNT_OR_OBJECT:
    case CONF_KEY_COUNT_OR_WORD:
        return;
    }
}

/* Sets the default of an absent key. An absent object is treated as an empty one, unless it is
 * optional. */
static int read_absent(const struct reader *r, const struct conf_key *k, char *base)
{
    char path[CONF_KEY_PATH_BYTES];

    if (k->type != CONF_KEY_OBJECT) {
        set_default(k, base);
        return 0;
    }
    if (k->flags & CONF_KEY_OPTIONAL)
        return 0;
    conf_key_path(k, path);
    return read_object(r, path, NULL, base);
}

static int refuse_inapplicable(const struct reader *r, const struct conf_key *k, const cJSON *value,
                               const char *base)
{
    const struct conf_key *on = conf_key_find(k->parent, k->when.key);
    const char *fitting[MAX_WORDS] = { NULL };
    const char *other = on->type == CONF_KEY_CHOICE ? "a list" : "a number";
    bool is_other = on->type != CONF_KEY_ENUM && conf_key_chosen(on, base) == 0;
    size_t n = 0;
    char list[LIST_BYTES];

    for (uint32_t i = 0; i < on->n_words; i++)
        if (k->when.words >> on->words[i].value & 1u)
            fitting[n++] = on->words[i].word;
    quoted_list(list, sizeof(list), fitting, n);
    return json_error(r->doc, value, r->err, "is used only where %s/%s is %s%s, but that is %s%s%s",
                      k->parent, on->name, n > 1 ? "one of " : "", list, is_other ? "" : "\"",
                      is_other ? other : conf_key_word(on, conf_key_chosen(on, base)),
                      is_other ? "" : "\"");
}

/* Rejects the absence of a key. `near` is the object that lacks the key. */
static int refuse_absent(const struct reader *r, const struct conf_key *k, const cJSON *near)
{
    if (k->instead != NULL)
        return json_error(r->doc, near, r->err, "\"%s\" or \"%s\" must be given, found neither",
                          k->name, k->instead);
    if (k->when.key != NULL)
        return json_error(r->doc, near, r->err, "\"%s\" is missing, and this \"%s\" needs it. %s",
                          k->name, k->when.key, k->doc);
    return json_error(r->doc, near, r->err, "\"%s\" is missing. %s", k->name, k->doc);
}

/* Reads an object. `object` NULL: the object is absent, and its keys get their defaults. */
static int read_object(const struct reader *r, const char *parent, const cJSON *object, char *base)
{
    int rc = object == NULL ? 0 : refuse_unknown_keys(r, parent, object);

    for (const struct conf_key *k = NULL; rc == 0 && (k = conf_key_next(parent, k)) != NULL;) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, k->name);
        const cJSON *other = NULL;

        if (k->instead != NULL)
            other = cJSON_GetObjectItemCaseSensitive(object, k->instead);
        if (!conf_key_applies(k, base))
            rc = value == NULL ? 0 : refuse_inapplicable(r, k, value, base);
        else if (value != NULL && other != NULL)
            rc = json_error(r->doc, other, r->err, "%s is given too: keep one of them",
                            json_pointer(r->doc, value));
        else if (value != NULL)
            rc = read_value(r, k, value, base);
        else if (k->flags & CONF_KEY_REQUIRED || (k->instead != NULL && other == NULL))
            rc = refuse_absent(r, k, object);
        else
            rc = read_absent(r, k, base);
    }
    return rc;
}

int conf_read_document(const struct json *doc, struct conf *c, struct err *err)
{
    const struct reader r = { doc, c, err };
    const cJSON *root = json_root(doc);
    char found[FOUND_BYTES];

    if (!cJSON_IsObject(root)) {
        json_describe(doc, root, found, sizeof(found));
        return json_error(doc, root, err, "a job must be an object, found %s", found);
    }
    return read_object(&r, "", root, (char *)c);
}
