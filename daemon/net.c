#include "daemon/net.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

#define IMAGE(size_, channels_)                                                                    \
    { "size", size_, 8, 4096, "height and width of the image" },                                   \
    { "channels", channels_, 1, 64, "channels of the image" }
#define CLASSES(n_) { "classes", n_, 1, 1000000, "classes to tell apart, or numbers to predict" }

/* clang-format off */
static const struct net_def nets[] = {
    { "mlp", "layers of Relu: x [batch, inputs]", 17,
      { { "inputs", 784, 1, 1 << 24, "numbers of a sample" },
        { "hidden", 128, 1, 1 << 20, "width of a hidden layer" },
        { "layers", 1, 0, 1000, "hidden layers" },
        CLASSES(10) }, NULL, net_make_mlp },
    { "lenet", "LeNet-5 with Relu and maximum pooling: x [batch, 1, 28, 28]", 17,
      { CLASSES(10) }, NULL, net_make_lenet },
    { "resnet18", "ResNet-18: x [batch, 3, 224, 224]", 17,
      { CLASSES(1000), IMAGE(224, 3) }, NULL, net_make_resnet18 },
    { "resnet50", "ResNet-50: x [batch, 3, 224, 224]", 17,
      { CLASSES(1000), IMAGE(224, 3) }, NULL, net_make_resnet50 },
    { "gpt2", "GPT-2, the 124M shape: ids [batch, sequence] int64", 20,
      { { "vocabulary", 50257, 2, 1 << 24, "tokens" },
        { "context", 1024, 1, 1 << 20, "positions that have an embedding" },
        { "sequence", 1024, 1, 1 << 20, "tokens of a sample, at most context" },
        { "width", 768, 1, 1 << 16, "of the embeddings" },
        { "layers", 12, 1, 1000, "transformer blocks" },
        { "heads", 12, 1, 1024, "attention heads; divides width" },
        { "dropout_percent", 0, 0, 99, "dropped in embeddings, attention and residuals" } },
      net_wrong_gpt2, net_make_gpt2 },
    { "dlrm", "DLRM: dense [batch, 13], sparse [batch, 26] int64", 17,
      { { "dense", 13, 1, 1 << 16, "numbers of a sample" },
        { "tables", 26, 1, 1024, "embedding tables, an index of each in a sample" },
        { "rows", 100000, 1, 1 << 30, "of a table" },
        { "width", 16, 1, 4096, "of an embedding" } }, NULL, net_make_dlrm },
};
/* clang-format on */

const struct net_def *net_all(size_t *n)
{
    *n = COUNT_OF(nets);
    return nets;
}

int64_t net_value(const struct net *n, const char *key)
{
    size_t i = 0;

    while (strcmp(n->keys[i].name, key) != 0) {
        i++;
        CHECK(i < NET_KEYS && n->keys[i].name != NULL);
    }
    return n->values[i];
}

/* ---- weights ---- */

/* Two normal numbers from two uniform ones (Box and Muller). */
void net_normal(struct net *n, const char *name, struct shape shape, double deviation)
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

void net_uniform(struct net *n, const char *name, struct shape shape, double bound)
{
    const struct rng_key key = { .seed = n->seed, .stream = n->stream++ };
    size_t count = (size_t)shape_elements(&shape), i;
    float *w = build_weights(n->b, name, shape);

    for (i = 0; w != NULL && i < count; i++)
        w[i] = (float)(bound * (2 * (double)rng_f32(&key, i) - 1));
}

void net_fill(struct net *n, const char *name, struct shape shape, float value)
{
    size_t count = (size_t)shape_elements(&shape), i;
    float *w = build_weights(n->b, name, shape);

    for (i = 0; w != NULL && i < count; i++)
        w[i] = value;
}

/* ---- nodes ---- */

void net_node(struct net *n, const char *op, const char *out, const char *inputs, ...)
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

void net_linear(struct net *n, const char *name, const char *in, const char *out, int64_t from,
                int64_t to, double gain)
{
    char weight[NET_NAME], bias[NET_NAME];

    snprintf(weight, sizeof(weight), "%s.weight", name);
    snprintf(bias, sizeof(bias), "%s.bias", name);
    if (gain > 1)
        net_normal(n, weight, shape_of(2, to, from), sqrt(gain / (double)from));
    else
        net_uniform(n, weight, shape_of(2, to, from), sqrt(6.0 / (double)(from + to)));
    net_fill(n, bias, shape_of(1, to), 0);
    net_node(n, "Gemm", out, "%s %s %s", in, weight, bias);
    build_int(n->b, "transB", 1);
}
