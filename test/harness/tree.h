/* tree.h - for tests that imitate folders of the system: writes files below a root. Include cmocka.h before it. */
#ifndef TEST_HARNESS_TREE_H
#define TEST_HARNESS_TREE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

/* Writes the file `name` below `root`, with its folders; replaces a file that exists. */
static inline void tree_add(const char *root, const char *name, const char *text)
{
    char path[512], *folder;

    snprintf(path, sizeof(path), "%s/%s", root, name);
    folder = fs_dirname(path);
    assert_non_null(folder);
    assert_int_equal(fs_mkdirs(folder, NULL), 0);
    assert_int_equal(fs_replace(path, text, strlen(text), NULL), 0);
    free(folder);
}

#endif
