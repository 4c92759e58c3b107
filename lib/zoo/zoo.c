/* zoo.c - the table of networks. */
#include "zoo/zoo.h"

#include "base/check.h"
#include "base/err.h"
#include "graph/build.h"
#include "zoo/zoo_priv.h"

#define IMAGE(size_, channels_)                                                                    \
    { "size", size_, 8, 4096, "height and width of the image" },                                   \
    { "channels", channels_, 1, 64, "channels of the image" }
#define CLASSES(n_) { "classes", n_, 1, 1000000, "classes to tell apart, or numbers to predict" }

/* clang-format off */
static const struct zoo_def nets[] = {
    { "mlp", "layers of Relu: x [batch, inputs]", 17,
      { { "inputs", 784, 1, 1 << 24, "numbers of a sample" },
        { "hidden", 128, 1, 1 << 20, "width of a hidden layer" },
        { "layers", 1, 0, 1000, "hidden layers" },
        CLASSES(10) }, NULL, zoo_make_mlp },
    { "lenet", "LeNet-5 with Relu and maximum pooling: x [batch, 1, 28, 28]", 17,
      { CLASSES(10) }, NULL, zoo_make_lenet },
    { "resnet18", "ResNet-18: x [batch, 3, 224, 224]", 17,
      { CLASSES(1000), IMAGE(224, 3) }, NULL, zoo_make_resnet18 },
    { "resnet50", "ResNet-50: x [batch, 3, 224, 224]", 17,
      { CLASSES(1000), IMAGE(224, 3) }, NULL, zoo_make_resnet50 },
    { "gpt2", "GPT-2, the 124M shape: ids [batch, sequence] int64", 20,
      { { "vocabulary", 50257, 2, 1 << 24, "tokens" },
        { "context", 1024, 1, 1 << 20, "positions that have an embedding" },
        { "sequence", 1024, 1, 1 << 20, "tokens of a sample, at most context" },
        { "width", 768, 1, 1 << 16, "of the embeddings" },
        { "layers", 12, 1, 1000, "transformer blocks" },
        { "heads", 12, 1, 1024, "attention heads; divides width" },
        { "dropout_percent", 0, 0, 99, "dropped in embeddings, attention and residuals" } },
      zoo_check_gpt2, zoo_make_gpt2 },
    { "dlrm", "DLRM: dense [batch, 13], sparse [batch, 26] int64", 17,
      { { "dense", 13, 1, 1 << 16, "numbers of a sample" },
        { "tables", 26, 1, 1024, "embedding tables, an index of each in a sample" },
        { "rows", 100000, 1, 1 << 30, "of a table" },
        { "width", 16, 1, 4096, "of an embedding" } }, NULL, zoo_make_dlrm },
};
/* clang-format on */

const struct zoo_def *zoo_all(size_t *n)
{
    *n = COUNT_OF(nets);
    return nets;
}

int zoo_build(const struct zoo_def *def, const int64_t values[ZOO_KEYS], uint64_t seed,
              struct build **out, struct err *err)
{
    struct zoo_net n = { .def = def, .values = values, .seed = seed };
    const char *contradiction = def->check != NULL ? def->check(&n) : NULL;

    if (contradiction != NULL)
        return err_set(err, ERR_INPUT, "%s: %s", def->name, contradiction);
    n.b = build_new(def->name, def->opset);
    if (n.b == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", def->name);
    def->make(&n);
    *out = n.b;
    return 0;
}
