/* shards.c - finds absent files of a set whose names state its size, as TensorFlow and `trainerctl convert` write them:
 * PREFIX-00003-of-00010SUFFIX, numbered from 0, or by some tools from 1.
 *
 * A file is absent if its name matches the pattern and no file of any folder has it. Files that the pattern leaves out, such as
 * most of train-0000[0-4]-of-00010, are not absent.
 * Two sets of different sizes in one folder, whose names are otherwise equal, are an older and a newer copy of the samples. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "data/data_priv.h"

enum { DIGITS_MAX = 6 }; /* more digits are no number of a file */

struct name {
    const char *path, *base; /* base: the name without its folder, in `path` */
    size_t n_prefix, digits; /* characters of `base` before the number, and of the number */
    uint32_t number, size;
    const char *rest; /* in `base`: what follows the size */
};

struct set {
    struct name last;  /* the file with the highest number so far */
    uint32_t n;       /* numbers that exist */
    bool has_zero;    /* a file has the number 0 */
    bool has_absent;  /* a number above 0 has no file, although the pattern matches its name */
    uint32_t absent;  /* the lowest such number; valid if has_absent */
};

struct sets {
    const char *pattern;
    VEC(struct set) all;
};

/* Reads the digits at `at` as a number; returns how many they are, 0 if they are none. */
static size_t read_digits(const char *at, uint32_t *out)
{
    size_t n = strspn(at, "0123456789");

    if (n == 0 || n > DIGITS_MAX)
        return 0;
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out = *out * 10 + (uint32_t)(at[i] - '0');
    return n;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* Finds the number and the size in the name of a file, the last ones if it has several; false if it has none. */
static bool read_name(const char *path, struct name *out)
{
    static const char of[] = "-of-";
    const char *base = base_of(path);
    size_t size_digits;
    bool found = false;

    for (const char *mark = strstr(base, of); mark != NULL; mark = strstr(mark + 1, of)) {
        const char *at = mark;
        struct name name = { .path = path, .base = base };

        while (at > base && at[-1] >= '0' && at[-1] <= '9')
            at--;
        name.n_prefix = (size_t)(at - base);
        name.digits = read_digits(at, &name.number);
        if (at == base || at[-1] != '-' || name.digits == 0 ||
            (size_digits = read_digits(mark + strlen(of), &name.size)) == 0 || name.size == 0 ||
            name.number > name.size)
            continue;
        name.rest = mark + strlen(of) + size_digits;
        *out = name;
        found = true;
    }
    return found;
}

/* Compares the names without their numbers. */
static bool is_same_set(const struct name *a, const struct name *b)
{
    return a->size == b->size && a->n_prefix == b->n_prefix && a->digits == b->digits &&
           memcmp(a->base, b->base, a->n_prefix) == 0 &&
           strcmp(a->base + a->n_prefix + a->digits, b->base + b->n_prefix + b->digits) == 0;
}

/* Returns the path that file `number` of a set has in the folder of s->last; the caller frees it. NULL: out of memory. */
static char *path_of(const struct set *s, uint32_t number)
{
    const struct name *last = &s->last;
    char *path = NULL;

    if (asprintf(&path, "%.*s%0*" PRIu32 "%s", (int)(last->base - last->path + last->n_prefix),
                 last->path, (int)last->digits, number,
                 last->base + last->n_prefix + last->digits) < 0)
        return NULL;
    return path;
}

/* Called for the numbers [from, to) of a set, which no file has, in ascending order. Errors: ERR_NOMEM. */
static int check_gap(const struct sets *w, struct set *s, uint32_t from, uint32_t to,
                     struct err *err)
{
    for (uint32_t i = from; !s->has_absent && i < to; i++) {
        char *path = path_of(s, i);

        if (path == NULL)
            return err_set(err, ERR_NOMEM, "find '%s': out of memory", w->pattern);
        s->has_absent = fnmatch(w->pattern, path, FNM_PATHNAME | FNM_PERIOD) == 0;
        s->absent = i;
        free(path);
    }
    return 0;
}

/* Whether the names differ in number and size alone, in one folder. */
static bool is_other_copy(const struct name *a, const struct name *b)
{
    size_t n = (size_t)(a->base - a->path) + a->n_prefix;

    return a->size != b->size && n == (size_t)(b->base - b->path) + b->n_prefix &&
           memcmp(a->path, b->path, n) == 0 && strcmp(a->rest, b->rest) == 0;
}

static int refuse_copies(const struct sets *w, const struct name *a, const struct name *b,
                         struct err *err)
{
    const struct name *larger = a->size > b->size ? a : b, *smaller = larger == a ? b : a;
    const char *size = larger->base + larger->n_prefix + larger->digits;

    return err_set(err, ERR_INPUT,
                   "'%s' and '%s' are of two sets, of %" PRIu32 " and of %" PRIu32 " files, that both match '%s', so samples "
                   "would be read twice: write a pattern for one of them, such as '%.*s*%s', or remove the other",
                   smaller->path, larger->path, smaller->size, larger->size, w->pattern,
                   (int)(larger->base - larger->path + larger->n_prefix), larger->path, size);
}

/* Adds a file to its set. Called in the order of the names, so the numbers of a set ascend. */
static int add(struct sets *w, const struct name *name, struct err *err)
{
    struct set *s = NULL, new = { .last = *name, .n = 1, .has_zero = name->number == 0 };
    int rc;

    for (size_t i = 0; i < w->all.n; i++)
        if (is_other_copy(&w->all.at[i].last, name))
            return refuse_copies(w, &w->all.at[i].last, name, err);
    for (size_t i = w->all.n; s == NULL && i > 0; i--)
        if (is_same_set(&w->all.at[i - 1].last, name))
            s = &w->all.at[i - 1];
    if (s != NULL) {
        rc = check_gap(w, s, s->last.number + 1, name->number, err);
        s->n += s->last.number != name->number; /* the file may be in two folders */
        s->last = *name;
        return rc;
    }
    rc = check_gap(w, &new, 1, name->number, err); /* 0 is checked at the end */
    if (rc == 0 && !VEC_PUSH(w->all, new))
        rc = err_set(err, ERR_NOMEM, "find '%s': out of memory", w->pattern);
    return rc;
}

/* Completes the search, and refuses the set if a file is absent. */
static int finish(const struct sets *w, struct set *s, struct err *err)
{
    bool from_one = s->last.number == s->last.size;
    struct set zero = { .last = s->last };
    char *path;
    int rc = s->has_zero || from_one ? 0 : check_gap(w, &zero, 0, 1, err);

    if (rc == 0)
        rc = check_gap(w, s, s->last.number + 1, s->last.size, err);
    if (rc < 0 || !(zero.has_absent || s->has_absent))
        return rc;
    path = path_of(s, zero.has_absent ? 0 : s->absent);
    rc = err_set(err, ERR_NOENT,
                 "'%s' is absent: %" PRIu32 " of the %" PRIu32 " files of this set match '%s': copy "
                 "the others, or write a pattern that leaves them out",
                 path != NULL ? path : "a file", s->n, s->last.size, w->pattern);
    free(path);
    return rc;
}

static int by_base(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    int order = strcmp(base_of(*x), base_of(*y));

    return order != 0 ? order : strcmp(*x, *y);
}

int data_check_shards(const char *pattern, char *const *paths, size_t n, struct err *err)
{
    struct sets w = { .pattern = pattern };
    char **sorted = calloc(n, sizeof(*sorted));
    struct name name;
    int rc = 0;

    if (sorted == NULL)
        return err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    memcpy(sorted, paths, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_base);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (read_name(sorted[i], &name))
            rc = add(&w, &name, err);
    for (size_t i = 0; rc == 0 && i < w.all.n; i++)
        rc = finish(&w, &w.all.at[i], err);
    VEC_FINI(w.all);
    free(sorted);
    return rc;
}
