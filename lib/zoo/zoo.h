/* zoo.h - predefined networks (`trainerctl model`) in the standard shapes of the literature.
 *
 * A network is one row of the table in zoo.c: a name, the integers that a caller may set, and a
 * function that builds the ONNX model. Initial weights depend only on the seed and on these
 * integers. Parameters have the names of PyTorch's state_dict (gpt2: Hugging Face's, dlrm: Meta's).
 *
 *     const struct zoo_def *def = zoo_all(&n) + i;
 *     int64_t values[ZOO_KEYS];
 *     for each k: values[k] = def->keys[k].value;
 *     rc = zoo_build(def, values, 0, &b, &err);
 *     if (rc == 0)
 *         rc = build_save(b, "model.onnx", &err);
 *     build_free(b);
 *
 * To add a network: write its function in its own file with the parts of zoo_priv.h, and add a row.
 * Threads: any; the folder has no state. */
#ifndef ZOO_ZOO_H
#define ZOO_ZOO_H

#include <stddef.h>
#include <stdint.h>

struct build;
struct err;
struct zoo_net; /* a network under construction; see zoo_priv.h */

enum { ZOO_KEYS = 12 };

struct zoo_key {
    const char *name;
    int64_t value, lo, hi; /* the default, and the allowed range */
    const char *doc;
};

struct zoo_def {
    const char *name, *doc;
    int64_t opset;
    struct zoo_key keys[ZOO_KEYS]; /* ends before the first key without a name */
    /* Returns a contradiction between keys, or NULL. NULL itself: every combination is valid. */
    const char *(*check)(const struct zoo_net *n);
    void (*make)(struct zoo_net *n);
};

/* All networks, in the order in which help texts list them; static memory. */
const struct zoo_def *zoo_all(size_t *n);

/* Builds the model of a row. values[k] belongs to def->keys[k] and lies in its range; `seed`
 * determines the initial weights. On success the caller frees *out with build_free(); on failure
 * *out is unchanged. A model that ran out of memory while it was built is reported by build_save().
 * Errors: ERR_INPUT (the values contradict each other), ERR_NOMEM. */
int zoo_build(const struct zoo_def *def, const int64_t values[ZOO_KEYS], uint64_t seed,
              struct build **out, struct err *err);

#endif
