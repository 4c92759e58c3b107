/* json_priv.h - what the scanner (json_scan.c) builds and the questions (json.c) read.
 *
 * Every cJSON value is the first member of a `struct json_node` that knows the rest, so a place is
 * found by a cast. All memory comes from one arena; nobody calls cJSON_Delete() on it. */
#ifndef BASE_JSON_PRIV_H
#define BASE_JSON_PRIV_H

#include "base/arena.h"
#include "base/json.h"

struct json_node {
    cJSON value; /* first: a cJSON * of ours is a struct json_node * */
    struct json_node *parent;
    char *number;   /* of a number: as written */
    char *pointer;  /* NULL until somebody asks */
    uint32_t index; /* of an array's element */
    uint32_t line, column;
};

struct json {
    struct arena arena;
    char *name;
    struct json_node *root;
};

enum { JSON_SHOWN_BYTES = 40 }; /* of a string, key or number in a message */

#endif
