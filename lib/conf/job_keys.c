/* job_keys.c - looks up rows in the tables of keys. */
#include "conf/job_keys.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "conf/job_keys_priv.h"

/* Every enum is stored and read as an unsigned; an item of a map starts with its name. */
static_assert(sizeof(enum optim_type) == sizeof(unsigned), "enums are unsigned");
static_assert(offsetof(struct conf_feature, data.name) == 0, "the name comes first");
static_assert(offsetof(struct train_input, feature) == 0, "the name comes first");
static_assert(offsetof(struct graph_rename, graph) == 0, "the name comes first");

/* In the order in which keys are printed. A key that determines whether others apply (a type, a rule)
 * precedes them in the same table. */
static const struct conf_key_table *const tables[] = {
    &conf_keys_model, &conf_keys_data, &conf_keys_train, &conf_keys_phases,
    &conf_keys_optimizer, &conf_keys_ps, &conf_keys_run,
};

/* Returns the row after `k` in all tables; `k` NULL: the first. Returns NULL after the last. */
static const struct conf_key *next_row(const struct conf_key *k)
{
    size_t t = 0;

    if (k == NULL)
        return tables[0]->rows;
    while (t < COUNT_OF(tables) && k + 1 != tables[t]->rows + tables[t]->n)
        t++;
    if (t == COUNT_OF(tables)) /* not the last row of a table */
        return k + 1;
    return t + 1 < COUNT_OF(tables) ? tables[t + 1]->rows : NULL;
}

const struct conf_key *conf_key_next(const char *parent, const struct conf_key *after)
{
    const struct conf_key *k = after;

    while ((k = next_row(k)) != NULL)
        if (strcmp(k->parent, parent) == 0)
            return k;
    return NULL;
}

const struct conf_key *conf_key_find(const char *parent, const char *name)
{
    const struct conf_key *k = NULL;

    while ((k = conf_key_next(parent, k)) != NULL)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

const struct conf_key *conf_key_find_unique(const char *name)
{
    const struct conf_key *found[2] = { NULL, NULL }; /* outside of lists and maps, inside */
    uint32_t n[2] = { 0, 0 };

    for (const struct conf_key *k = next_row(NULL); k != NULL; k = next_row(k)) {
        bool is_item = strchr(k->parent, '*') != NULL;

        if (strcmp(k->name, name) != 0)
            continue;
        found[is_item] = k;
        n[is_item]++;
    }
    if (n[0] > 0)
        return n[0] == 1 ? found[0] : NULL;
    return n[1] == 1 ? found[1] : NULL;
}

void conf_key_path(const struct conf_key *k, char out[CONF_KEY_PATH_BYTES])
{
    int n = snprintf(out, CONF_KEY_PATH_BYTES, "%s/%s", k->parent, k->name);

    CHECK(n > 0 && n < CONF_KEY_PATH_BYTES);
}

const char *conf_key_word(const struct conf_key *k, unsigned value)
{
    for (uint32_t i = 0; i < k->n_words; i++)
        if (k->words[i].value == value)
            return k->words[i].word;
    CHECK(!"a value without a word");
    return "";
}

bool conf_key_value(const struct conf_key *k, const char *word, unsigned *value)
{
    for (uint32_t i = 0; i < k->n_words; i++) {
        if (strcmp(k->words[i].word, word) == 0) {
            *value = k->words[i].value;
            return true;
        }
    }
    return false;
}

bool conf_key_is_given(const struct conf_key *k, const void *base)
{
    if (k->type == CONF_KEY_LIST)
        return *(const uint32_t *)((const char *)base + k->count) != 0;
    return *(const bool *)((const char *)base + k->at);
}

unsigned conf_key_chosen(const struct conf_key *k, const void *base)
{
    bool is_enum = k->type == CONF_KEY_ENUM;

    return *(const unsigned *)((const char *)base + (is_enum ? k->at : k->chosen));
}

bool conf_key_applies(const struct conf_key *k, const void *base)
{
    const struct conf_key *on;

    if (k->when.key == NULL)
        return true;
    on = conf_key_find(k->parent, k->when.key);
    CHECK(on != NULL && on < k);
    return (k->when.words >> conf_key_chosen(on, base) & 1u) != 0;
}
