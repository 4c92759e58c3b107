/* net.h - ready-made networks, for `trainerctl model`: the standard shapes, with initial weights that
 * depend on the seed alone. Parameters are called as in PyTorch's (gpt2: Hugging Face's, dlrm: Meta's)
 * state_dict. A network is a function and a table of the numbers that can be set. */
#ifndef DAEMON_NET_H
#define DAEMON_NET_H

#include <stddef.h>
#include <stdint.h>

#include "graph/build.h"

enum { NET_KEYS = 12, NET_NAME = 160 };

struct net_key {
    const char *name;
    int64_t value, lo, hi; /* default, and what it may be */
    const char *doc;
};

struct net {
    struct build *b;
    const struct net_key *keys;
    int64_t values[NET_KEYS];
    uint64_t seed;
    uint32_t stream; /* of the next weight */
};

struct net_def {
    const char *name, *doc;
    int64_t opset;
    struct net_key keys[NET_KEYS]; /* up to the first without a name */
    const char *(*wrong)(const struct net *n); /* a contradiction between keys; NULL: fine */
    void (*make)(struct net *n);
};

const struct net_def *net_all(size_t *n);

/* ---- for the networks: net.c ---- */
int64_t net_value(const struct net *n, const char *key);
/* A weight: normal with this deviation, uniform in -bound .. bound, or one number everywhere. */
void net_normal(struct net *n, const char *name, struct shape shape, double deviation);
void net_uniform(struct net *n, const char *name, struct shape shape, double bound);
void net_fill(struct net *n, const char *name, struct shape shape, float value);
/* build_node() with the inputs as a format. */
void net_node(struct net *n, const char *op, const char *out, const char *inputs, ...)
    __attribute__((format(printf, 4, 5)));
/* out = in W^T + b with `name`.weight [to, from] and .bias; uniform in +-1/sqrt(from) as in PyTorch, but
 * before a Relu (gain 2) normal with variance gain / from (He), else (gain 1) Xavier. */
void net_linear(struct net *n, const char *name, const char *in, const char *out, int64_t from,
                int64_t to, double gain);

void net_make_mlp(struct net *n);
void net_make_lenet(struct net *n);
void net_make_resnet18(struct net *n);
void net_make_resnet50(struct net *n);
void net_make_gpt2(struct net *n);
const char *net_wrong_gpt2(const struct net *n);
void net_make_dlrm(struct net *n);

#endif
