/* parts.c - values, weights and nodes from which the networks are built. */
#include "zoo/zoo_priv.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "zoo/zoo.h"

int64_t zoo_value(const struct zoo_net *n, const char *key)
{
    size_t i = 0;

    while (strcmp(n->def->keys[i].name, key) != 0) {
        i++;
        CHECK(i < ZOO_KEYS && n->def->keys[i].name != NULL);
    }
    return n->values[i];
}

/* ---- weights ---- */

/* Box and Muller: two uniform numbers give two normal numbers. */
void zoo_normal(struct zoo_net *n, const char *name, struct shape shape, double deviation)
{
    const struct rng_key key = { .seed = n->seed, .stream = n->stream++ };
    size_t count = (size_t)shape_elements(&shape), i, k;
    float *w = build_weights(n->b, name, shape);

    for (i = 0; w != NULL && i < count; i += 4) {
        uint32_t word[4];

        rng_block(&key, (uint32_t)(i / 4), word);
        for (k = 0; k < 4 && i + k < count; k++) {
            double u = ((double)word[k / 2 * 2] + 1) / 4294967296.0;
            double angle = 2 * M_PI * (double)word[k / 2 * 2 + 1] / 4294967296.0;
            double radius = sqrt(-2 * log(u));

            w[i + k] = (float)(deviation * radius * (k % 2 == 0 ? cos(angle) : sin(angle)));
        }
    }
}

void zoo_uniform(struct zoo_net *n, const char *name, struct shape shape, double bound)
{
    const struct rng_key key = { .seed = n->seed, .stream = n->stream++ };
    size_t count = (size_t)shape_elements(&shape), i;
    float *w = build_weights(n->b, name, shape);

    for (i = 0; w != NULL && i < count; i++)
        w[i] = (float)(bound * (2 * (double)rng_f32(&key, i) - 1));
}

void zoo_fill(struct zoo_net *n, const char *name, struct shape shape, float value)
{
    size_t count = (size_t)shape_elements(&shape), i;
    float *w = build_weights(n->b, name, shape);

    for (i = 0; w != NULL && i < count; i++)
        w[i] = value;
}

/* ---- nodes ---- */

void zoo_node(struct zoo_net *n, const char *op, const char *out, const char *inputs, ...)
{
    char names[4096];
    va_list ap;
    int len;

    va_start(ap, inputs);
    len = vsnprintf(names, sizeof(names), inputs, ap);
    va_end(ap);
    CHECK(len >= 0 && (size_t)len < sizeof(names));
    build_node(n->b, op, names, out);
}

void zoo_linear(struct zoo_net *n, const char *name, const char *in, const char *out, int64_t from,
                int64_t to, double gain)
{
    char weight[ZOO_NAME], bias[ZOO_NAME];

    snprintf(weight, sizeof(weight), "%s.weight", name);
    snprintf(bias, sizeof(bias), "%s.bias", name);
    if (gain > 1)
        zoo_normal(n, weight, shape_of(2, to, from), sqrt(gain / (double)from));
    else
        zoo_uniform(n, weight, shape_of(2, to, from), sqrt(6.0 / (double)(from + to)));
    zoo_fill(n, bias, shape_of(1, to), 0);
    zoo_node(n, "Gemm", out, "%s %s %s", in, weight, bias);
    build_int(n->b, "transB", 1);
}
