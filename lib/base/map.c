/* map.c - open addressing with linear probing: a key is stored in the first free slot at or after
 * its hash. At most three quarters of the slots are used. Keys are never deleted. */
#include "base/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/check.h"
#include "base/fault.h"

enum { CAP_MIN = 16 };

struct map_slot {
    char *key; /* owned; NULL: the slot is free */
    uint64_t hash;
    uint64_t value;
};

static uint64_t rotate(uint64_t x, unsigned by)
{
    return x << by | x >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein, 2012): without the key, colliding strings cannot be
 * chosen. The key is the 16 random bytes that the kernel passes to every new process. */
static uint64_t hash_of(const char *s)
{
    const void *random = (const void *)getauxval(AT_RANDOM);
    size_t n = strlen(s);
    uint64_t key[2], v[4], word;

    CHECK(random != NULL);
    memcpy(key, random, sizeof(key));
    v[0] = key[0] ^ 0x736f6d6570736575u;
    v[1] = key[1] ^ 0x646f72616e646f6du;
    v[2] = key[0] ^ 0x6c7967656e657261u;
    v[3] = key[1] ^ 0x7465646279746573u;
    for (size_t at = 0; at <= n; at += 8) {
        size_t left = n - at;

        word = 0;
        memcpy(&word, s + at, left < 8 ? left : 8);
        if (left < 8)
            word |= (uint64_t)n << 56; /* the last word contains the length */
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Returns the slot of the key, or the free slot for it. */
static struct map_slot *slot_of(const struct map *m, const char *key, uint64_t hash)
{
    size_t at = hash & (m->cap - 1);

    while (m->slots[at].key != NULL &&
           (m->slots[at].hash != hash || strcmp(m->slots[at].key, key) != 0))
        at = (at + 1) & (m->cap - 1);
    return &m->slots[at];
}

static bool grow(struct map *m)
{
    struct map bigger = { .n = m->n, .cap = m->cap > 0 ? m->cap * 2 : CAP_MIN };

    bigger.slots = fault_hit("mem") ? NULL : calloc(bigger.cap, sizeof(*bigger.slots));
    if (bigger.slots == NULL)
        return false;
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].key != NULL)
            *slot_of(&bigger, m->slots[i].key, m->slots[i].hash) = m->slots[i];
    free(m->slots);
    *m = bigger;
    return true;
}

enum map_put map_put(struct map *m, const char *key, uint64_t value)
{
    uint64_t hash = hash_of(key);
    struct map_slot *slot;
    char *copy;

    if (m->n >= m->cap / 4 * 3 && !grow(m))
        return MAP_NOMEM;
    slot = slot_of(m, key, hash);
    if (slot->key != NULL)
        return MAP_EXISTED;
    copy = fault_hit("mem") ? NULL : strdup(key);
    if (copy == NULL)
        return MAP_NOMEM;
    *slot = (struct map_slot){ .key = copy, .hash = hash, .value = value };
    m->n++;
    return MAP_NEW;
}

bool map_get(const struct map *m, const char *key, uint64_t *out)
{
    const struct map_slot *slot;

    if (m->n == 0)
        return false;
    slot = slot_of(m, key, hash_of(key));
    if (slot->key == NULL)
        return false;
    *out = slot->value;
    return true;
}

void map_fini(struct map *m)
{
    for (size_t i = 0; i < m->cap; i++)
        free(m->slots[i].key);
    free(m->slots);
    memset(m, 0, sizeof(*m));
}
