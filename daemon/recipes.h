/* recipes.h - the export scripts of config/recipes, embedded in the program. The Makefile generates
 * the table. */
#ifndef DAEMON_RECIPES_H
#define DAEMON_RECIPES_H

#include <stddef.h>

struct recipe {
    const char *name;          /* "torch": config/recipes/torch.py */
    const unsigned char *text; /* Python; no NUL at the end */
    const size_t *bytes;
};

extern const struct recipe recipes[]; /* sorted by name */
extern const size_t n_recipes;

#endif
