/* zoo_priv.h - a network under construction, and the parts from which the networks of this folder
 * are built. build.h explains the names of values; a failure there is reported by build_save(). */
#ifndef ZOO_ZOO_PRIV_H
#define ZOO_ZOO_PRIV_H

#include <stdint.h>

#include "graph/build.h"
#include "tensor/tensor.h"

struct zoo_def;

enum { ZOO_NAME = 160 }; /* bytes of a value's name, with the terminating zero */

struct zoo_net {
    struct build *b; /* owned by the caller of zoo_build() after success */
    const struct zoo_def *def;
    const int64_t *values; /* one per key of `def`; borrowed */
    uint64_t seed;
    uint32_t stream; /* the random stream of the next weight */
};

/* ---- parts.c ---- */
int64_t zoo_value(const struct zoo_net *n, const char *key); /* `key` must exist */
/* Adds a weight: normal with this deviation, uniform in -bound .. bound, or constant. */
void zoo_normal(struct zoo_net *n, const char *name, struct shape shape, double deviation);
void zoo_uniform(struct zoo_net *n, const char *name, struct shape shape, double bound);
void zoo_fill(struct zoo_net *n, const char *name, struct shape shape, float value);
/* build_node() with a format for the inputs. */
void zoo_node(struct zoo_net *n, const char *op, const char *out, const char *inputs, ...)
    __attribute__((format(printf, 4, 5)));
/* out = in W^T + b with `name`.weight [to, from] and `name`.bias (zero). W is normal with variance
 * gain / from where gain > 1 (2: before a Relu, He), and uniform (Xavier) where gain = 1. */
void zoo_linear(struct zoo_net *n, const char *name, const char *in, const char *out, int64_t from,
                int64_t to, double gain);

/* ---- the networks ---- */
void zoo_make_mlp(struct zoo_net *n);
void zoo_make_lenet(struct zoo_net *n);
void zoo_make_resnet18(struct zoo_net *n);
void zoo_make_resnet50(struct zoo_net *n);
void zoo_make_gpt2(struct zoo_net *n);
const char *zoo_check_gpt2(const struct zoo_net *n);
void zoo_make_dlrm(struct zoo_net *n);

#endif
