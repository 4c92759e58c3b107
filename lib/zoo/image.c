/* image.c - networks of images.
 *
 * LeNet-5: Y. LeCun et al., "Gradient-based learning applied to document recognition", 1998 (61 706
 * numbers). ResNet: K. He et al., "Deep residual learning for image recognition", 2016, with the
 * stride of a bottleneck in its 3x3 convolution as torchvision has it (11 689 512 and 25 557 032
 * numbers). Weights before a Relu: He et al., "Delving deep into rectifiers", 2015. */
#include "zoo/zoo_priv.h"

#include <math.h>
#include <stdio.h>

void zoo_make_mlp(struct zoo_net *n)
{
    int64_t from = zoo_value(n, "inputs"), hidden = zoo_value(n, "hidden");
    int64_t layers = zoo_value(n, "layers"), classes = zoo_value(n, "classes"), i;
    char in[ZOO_NAME] = "x", name[ZOO_NAME], out[ZOO_NAME], relu[ZOO_NAME];

    build_input(n->b, "x", TENSOR_F32, shape_of(2, (int64_t)-1, from));
    for (i = 1; i <= layers; i++, from = hidden) {
        snprintf(name, sizeof(name), "fc%d", (int)i);
        snprintf(out, sizeof(out), "%s_out", name);
        snprintf(relu, sizeof(relu), "relu%d", (int)i);
        zoo_linear(n, name, in, out, from, hidden, 2);
        zoo_node(n, "Relu", relu, "%s", out);
        snprintf(in, sizeof(in), "%s", relu);
    }
    snprintf(name, sizeof(name), "fc%d", (int)i);
    zoo_linear(n, name, in, "logits", from, classes, 1);
    build_output(n->b, "logits", TENSOR_F32, shape_of(2, (int64_t)-1, classes));
}

struct conv {
    const char *name;
    int64_t from, to, kernel, stride, pad;
    bool has_bias;
};

static void conv(struct zoo_net *n, const struct conv *c, const char *in, const char *out,
                 double fan)
{
    int64_t pads[4] = { c->pad, c->pad, c->pad, c->pad }, strides[2] = { c->stride, c->stride };
    int64_t kernel[2] = { c->kernel, c->kernel };
    char weight[ZOO_NAME], bias[ZOO_NAME] = "-";

    snprintf(weight, sizeof(weight), "%s.weight", c->name);
    zoo_normal(n, weight, shape_of(4, c->to, c->from, c->kernel, c->kernel), sqrt(2 / fan));
    if (c->has_bias) {
        snprintf(bias, sizeof(bias), "%s.bias", c->name);
        zoo_fill(n, bias, shape_of(1, c->to), 0);
    }
    zoo_node(n, "Conv", out, "%s %s%s%s", in, weight, c->has_bias ? " " : "",
             c->has_bias ? bias : "");
    build_ints(n->b, "kernel_shape", kernel, 2);
    build_ints(n->b, "strides", strides, 2);
    build_ints(n->b, "pads", pads, 4);
}

static void max_pool(struct zoo_net *n, const char *in, const char *out, int64_t kernel,
                     int64_t stride, int64_t pad)
{
    zoo_node(n, "MaxPool", out, "%s", in);
    build_ints(n->b, "kernel_shape", (int64_t[]){ kernel, kernel }, 2);
    build_ints(n->b, "strides", (int64_t[]){ stride, stride }, 2);
    build_ints(n->b, "pads", (int64_t[]){ pad, pad, pad, pad }, 4);
}

void zoo_make_lenet(struct zoo_net *n)
{
    const struct conv c1 = { "conv1", 1, 6, 5, 1, 2, true }, c2 = { "conv2", 6, 16, 5, 1, 0, true };
    int64_t classes = zoo_value(n, "classes");

    build_input(n->b, "x", TENSOR_F32,
                shape_of(4, (int64_t)-1, (int64_t)1, (int64_t)28, (int64_t)28));
    conv(n, &c1, "x", "c1", 25);
    zoo_node(n, "Relu", "r1", "c1");
    max_pool(n, "r1", "p1", 2, 2, 0);
    conv(n, &c2, "p1", "c2", 150);
    zoo_node(n, "Relu", "r2", "c2");
    max_pool(n, "r2", "p2", 2, 2, 0);
    zoo_node(n, "Flatten", "flat", "p2");
    zoo_linear(n, "fc1", "flat", "f1", 400, 120, 2);
    zoo_node(n, "Relu", "r3", "f1");
    zoo_linear(n, "fc2", "r3", "f2", 120, 84, 2);
    zoo_node(n, "Relu", "r4", "f2");
    zoo_linear(n, "fc3", "r4", "logits", 84, classes, 1);
    build_output(n->b, "logits", TENSOR_F32, shape_of(2, (int64_t)-1, classes));
}

/* ---- ResNet ---- */

/* Writes the training form (training_mode = 1). The export converts it to the inference form. */
static void batch_norm(struct zoo_net *n, const char *name, const char *in, const char *out,
                       int64_t channels)
{
    static const struct {
        const char *suffix;
        float value;
    } parts[] = { { "weight", 1 }, { "bias", 0 }, { "running_mean", 0 }, { "running_var", 1 } };
    char full[ZOO_NAME], outputs[3 * ZOO_NAME];
    size_t i;

    for (i = 0; i < 4; i++) {
        snprintf(full, sizeof(full), "%s.%s", name, parts[i].suffix);
        zoo_fill(n, full, shape_of(1, channels), parts[i].value);
    }
    snprintf(outputs, sizeof(outputs), "%s %s.mean %s.var", out, name, name);
    zoo_node(n, "BatchNormalization", outputs,
             "%s %s.weight %s.bias %s.running_mean %s.running_var", in, name, name, name, name);
    build_int(n->b, "training_mode", 1);
    build_float(n->b, "momentum", 0.9f);
    build_float(n->b, "epsilon", 1e-5f);
}

/* Convolution `block`.conv<i> and normalisation `block`.bn<i> (downsample: .0 and .1). */
static void conv_norm(struct zoo_net *n, const char *block, const char *conv_name,
                      const char *norm_name, const char *in, const char *out,
                      const struct conv *like)
{
    char name[ZOO_NAME], norm[ZOO_NAME], between[ZOO_NAME];
    struct conv c = *like;

    snprintf(name, sizeof(name), "%s%s", block, conv_name);
    snprintf(norm, sizeof(norm), "%s%s", block, norm_name);
    snprintf(between, sizeof(between), "%s.out", name);
    c.name = name;
    conv(n, &c, in, between, (double)(c.to * c.kernel * c.kernel)); /* fan out */
    batch_norm(n, norm, between, out, c.to);
}

struct stage {
    int64_t from, width, stride;
    int64_t expansion; /* 1: two 3x3 convolutions; 4: 1x1, 3x3, 1x1 */
};

/* Names of a block's values: block + suffix. */
static const char *value(char *out, const char *block, const char *suffix)
{
    snprintf(out, ZOO_NAME, "%s%s", block, suffix);
    return out;
}

static void shortcut(struct zoo_net *n, const struct stage *s, const char *block, const char *in,
                     char *out)
{
    const struct conv c = { NULL, s->from, s->width * s->expansion, 1, s->stride, 0, false };

    if (s->stride == 1 && c.from == c.to) {
        snprintf(out, ZOO_NAME, "%s", in);
        return;
    }
    conv_norm(n, block, "downsample.0", "downsample.1", in, value(out, block, "short"), &c);
}

static void residual_block(struct zoo_net *n, const struct stage *s, const char *block,
                           const char *in, const char *out)
{
    int64_t wide = s->width * s->expansion;
    const struct conv plain[] = { { NULL, s->from, s->width, 3, s->stride, 1, false },
                                  { NULL, s->width, s->width, 3, 1, 1, false } };
    const struct conv bottleneck[] = { { NULL, s->from, s->width, 1, 1, 0, false },
                                       { NULL, s->width, s->width, 3, s->stride, 1, false },
                                       { NULL, s->width, wide, 1, 1, 0, false } };
    const struct conv *list = s->expansion == 1 ? plain : bottleneck;
    int count = s->expansion == 1 ? 2 : 3, i;
    char at[ZOO_NAME], next[ZOO_NAME], relu[ZOO_NAME], side[ZOO_NAME];

    snprintf(at, sizeof(at), "%s", in);
    for (i = 0; i < count; i++) {
        char conv_name[16], norm_name[16], suffix[16];

        snprintf(conv_name, sizeof(conv_name), "conv%d", i + 1);
        snprintf(norm_name, sizeof(norm_name), "bn%d", i + 1);
        snprintf(suffix, sizeof(suffix), "n%d", i + 1);
        conv_norm(n, block, conv_name, norm_name, at, value(next, block, suffix), &list[i]);
        snprintf(at, sizeof(at), "%s", next);
        if (i + 1 == count)
            break;
        snprintf(suffix, sizeof(suffix), "r%d", i + 1);
        zoo_node(n, "Relu", value(relu, block, suffix), "%s", at);
        snprintf(at, sizeof(at), "%s", relu);
    }
    shortcut(n, s, block, in, side);
    zoo_node(n, "Add", value(next, block, "sum"), "%s %s", at, side);
    zoo_node(n, "Relu", out, "%s", next);
}

static void resnet(struct zoo_net *n, const int blocks[4], int64_t expansion)
{
    const struct conv first = { NULL, zoo_value(n, "channels"), 64, 7, 2, 3, false };
    int64_t classes = zoo_value(n, "classes"), size = zoo_value(n, "size");
    char in[ZOO_NAME] = "pool", block[ZOO_NAME], out[ZOO_NAME];
    struct stage s = { .from = 64, .expansion = expansion };
    int i, k;

    build_input(n->b, "x", TENSOR_F32, shape_of(4, (int64_t)-1, first.from, size, size));
    conv_norm(n, "", "conv1", "bn1", "x", "first", &first);
    zoo_node(n, "Relu", "relu", "first");
    max_pool(n, "relu", "pool", 3, 2, 1);
    for (i = 0; i < 4; i++)
        for (k = 0; k < blocks[i]; k++) {
            s.width = 64 << i;
            s.stride = i > 0 && k == 0 ? 2 : 1;
            snprintf(block, sizeof(block), "layer%d.%d.", i + 1, k);
            snprintf(out, sizeof(out), "layer%d.%d", i + 1, k);
            residual_block(n, &s, block, in, out);
            s.from = s.width * expansion;
            snprintf(in, sizeof(in), "%s", out);
        }
    zoo_node(n, "GlobalAveragePool", "mean", "%s", in);
    zoo_node(n, "Flatten", "flat", "mean");
    zoo_linear(n, "fc", "flat", "logits", s.from, classes, 1);
    build_output(n->b, "logits", TENSOR_F32, shape_of(2, (int64_t)-1, classes));
}

void zoo_make_resnet18(struct zoo_net *n)
{
    resnet(n, (const int[]){ 2, 2, 2, 2 }, 1);
}

void zoo_make_resnet50(struct zoo_net *n)
{
    resnet(n, (const int[]){ 3, 4, 6, 3 }, 4);
}
