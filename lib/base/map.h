/* map.h - string to number, by hash. Keys are copied. Threads: one at a time.
 * Keyed with a random seed per process, so hostile names cannot make it slow. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map {
    struct map_slot *slots;
    size_t n, cap;
};

enum map_put { MAP_NEW, MAP_EXISTED, MAP_NOMEM };

/* MAP_EXISTED leaves the old value. */
enum map_put map_put(struct map *m, const char *key, uint64_t value);
bool map_get(const struct map *m, const char *key, uint64_t *out);
void map_fini(struct map *m);

#endif
