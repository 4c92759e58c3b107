/* json_priv.h - the tree that the scanner (json_scan.c) builds and the queries (json.c) read.
 *
 * Each cJSON value is the first member of a `struct json_node` with its position, which is reached
 * by a cast. All memory comes from one arena; cJSON_Delete() is never called on it. */
#ifndef BASE_JSON_PRIV_H
#define BASE_JSON_PRIV_H

#include "base/arena.h"
#include "base/json.h"

struct json_node {
    cJSON value; /* first member, so that a cJSON * of this tree is a struct json_node * */
    struct json_node *parent; /* NULL: the root */
    char *number;   /* of a number: its text; else NULL */
    char *pointer;  /* NULL before the first json_pointer() */
    uint32_t index; /* of an element of an array */
    uint32_t line, column;
};

struct json {
    struct arena arena;
    char *name;
    struct json_node *root;
};

enum { JSON_SHOWN_BYTES = 40 }; /* most bytes of a string, key or number in a message */

#endif
