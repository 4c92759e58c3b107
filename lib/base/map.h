/* map.h - a hash map from strings to numbers. Keys are copied. Threads: one at a time.
 *
 * The hash uses a random key per process, so chosen names cannot cause collisions. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map {
    struct map_slot *slots; /* owned [cap] */
    size_t n, cap;          /* keys; slots, a power of two or 0 */
};

enum map_put { MAP_NEW, MAP_EXISTED, MAP_NOMEM };

/* Adds a key. MAP_EXISTED: the key is present, and its value is unchanged. */
enum map_put map_put(struct map *m, const char *key, uint64_t value);
/* Sets *out and returns true if the key is present. */
bool map_get(const struct map *m, const char *key, uint64_t *out);
void map_fini(struct map *m);

#endif
