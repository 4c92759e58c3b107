/* bias.c - detects biases that tf2onnx has removed.
 *
 * tf2onnx removes additions of zeros, so the biases of a layer that was never trained are in no
 * tensor and no node of the file. Node names show which layers have a bias: "dense_1/MatMul" is
 * followed by "dense_1/BiasAdd". A "dense" layer without one, in a file where another dense layer
 * has one, is a question: a new head on a trained network has this form. Many other layers, for
 * example convolutions, are defined without a bias; they are noted, as are dense layers of files in
 * which no dense layer has a bias.
 *
 * Products that a batch normalization reads need no bias. A job that lists the weight of a layer
 * (model.trainable) has answered the question about that layer. A list without the weight answers
 * another question: the layer is then noted. No question is asked about files of
 * `trainerctl recipe tensorflow`, in which every weight is a variable named by its path. */
#include "graph/param_priv.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"

enum { LISTED = 8 /* layers that a message lists */ };

struct span {
    const char *at;
    size_t n;
};

static bool equals(struct span a, const char *b)
{
    return strlen(b) == a.n && memcmp(a.at, b, a.n) == 0;
}

/* Removes the last component of a path and returns it. */
static struct span pop_last(struct span *path)
{
    size_t n = path->n;
    struct span last;

    while (n > 0 && path->at[n - 1] != '/')
        n--;
    last = (struct span){ path->at + n, path->n - n };
    path->n = n > 0 ? n - 1 : 0;
    return last;
}

/* "net/dense_6_1" for "net/dense_6_1/Tensordot/MatMul". */
static struct span layer_of(const struct graph_node *n)
{
    struct span path = { n->name, strlen(n->name) }, before;

    (void)pop_last(&path);
    before = path;
    return equals(pop_last(&path), "Tensordot") ? path : before;
}

/* "dense" for "net/dense_6_1". */
static struct span class_of(struct span layer)
{
    struct span name = pop_last(&layer);
    size_t n = name.n;

    while (n > 0 && name.at[n - 1] >= '0' && name.at[n - 1] <= '9') {
        while (n > 0 && name.at[n - 1] >= '0' && name.at[n - 1] <= '9')
            n--;
        if (n == 0 || name.at[n - 1] != '_')
            break;
        name.n = --n;
    }
    return name;
}

/* Returns whether the node is a layer's product with a trained weight whose name was not set by the
 * recipe. */
static bool is_product(const struct graph *g, const struct graph_node *n)
{
    const char *weight;

    if ((!op_is_onnx(n->def, "MatMul") && !op_is_onnx(n->def, "Gemm") &&
         !op_is_onnx(n->def, "Conv")) ||
        n->n_in < 2 || n->in[1] == GRAPH_NONE || g->values[n->in[1]].kind != VALUE_PARAM ||
        layer_of(n).n == 0)
        return false;
    weight = g->values[n->in[1]].name;
    return strchr(weight, ':') != NULL || strstr(weight, "__") != NULL;
}

static bool has_bias(const struct graph *g, const struct graph_node *n)
{
    struct span layer = layer_of(n);
    uint32_t i, k;

    if (n->n_in > 2)
        return true;
    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *m = &g->nodes[i];
        const char *rest = m->name + layer.n;

        if (strncmp(m->name, layer.at, layer.n) == 0 &&
            (text_starts(rest, "/BiasAdd") || text_starts(rest, "/Add") ||
             text_starts(rest, "/add")))
            return true;
        for (k = 0; k < m->n_in && op_is_onnx(m->def, "BatchNormalization"); k++)
            if (m->in[k] == n->out[0])
                return true;
    }
    return false;
}

static bool has_sibling(const struct graph *g, const struct graph_node *n, const bool *biased)
{
    struct span own = class_of(layer_of(n)), other;
    uint32_t i;

    if (!equals(own, "dense"))
        return false;
    for (i = 0; i < g->n_nodes; i++) {
        if (!biased[i])
            continue;
        other = class_of(layer_of(&g->nodes[i]));
        if (other.n == own.n && memcmp(other.at, own.at, own.n) == 0)
            return true;
    }
    return false;
}

static void add_name(struct buf *names, uint32_t *n, const struct graph_node *node)
{
    struct span layer = layer_of(node);

    if (*n < LISTED)
        buf_printf(names, "%s'%.*s'", *n > 0 ? ", " : "", (int)layer.n, layer.at);
    *n += 1;
}

/* Does model.trainable name the weight of this product? */
static bool is_answered(const struct graph *g, const struct graph_opts *opts,
                        const struct graph_node *n)
{
    uint32_t i;

    for (i = 0; i < opts->n_trainable; i++)
        if (fnmatch(opts->trainable[i], g->values[n->in[1]].name, 0) == 0)
            return true;
    return false;
}

static int report(struct graph *g, const struct graph_opts *opts, const struct buf *certain,
                  uint32_t n_certain, const char *weight, const struct buf *possible,
                  uint32_t n_possible, struct err *err)
{
    static const char how[] = "export with the script of `trainerctl recipe tensorflow`, which keeps "
                              "every variable, and copy the list that it prints to \"trainable\"";
    const char *text;

    if (certain->failed || possible->failed)
        return err_set(err, ERR_NOMEM, "find the parameters: out of memory");
    if (n_certain > 0) {
        text = arena_printf(&g->mem,
                            "%" PRIu32 " layer%s without a bias (%s), where another layer of the same class "
                            "has one: tf2onnx removes biases of zeros, so a layer that was never trained would "
                            "lack its bias; %s; or, if the model defines no bias there, decide with a line in "
                            "\"model\" of the job: \"trainable\": [\"%s\"]",
                            n_certain, n_certain == 1 ? "" : "s", certain->data, how, weight);
        if (text == NULL)
            return err_set(err, ERR_NOMEM, "find the parameters: out of memory");
        if (!opts->collect_questions)
            return err_set(err, ERR_INPUT, "%s", text);
        if (g->report.question == NULL)
            g->report.question = text;
    }
    if (n_possible > 0)
        return graph_note(g, err,
                          "%" PRIu32 " layer%s without a bias (%s): tf2onnx removes biases of zeros, so a "
                          "layer that was never trained may lack its bias; if the model has one, %s",
                          n_possible, n_possible == 1 ? "" : "s", possible->data, how);
    return 0;
}

int graph_check_biases(struct graph *g, const struct graph_opts *opts, struct err *err)
{
    struct buf certain = { 0 }, possible = { 0 };
    uint32_t n_certain = 0, n_possible = 0, i;
    const char *weight = ""; /* of the first layer of the question */
    struct arena mem = { 0 };
    bool *biased;
    int rc;

    if (!text_starts(g->file.producer, "tf2onnx"))
        return 0;
    biased = arena_array(&mem, g->n_nodes, sizeof(*biased));
    if (biased == NULL)
        return err_set(err, ERR_NOMEM, "find the parameters: out of memory");
    for (i = 0; i < g->n_nodes; i++)
        biased[i] = is_product(g, &g->nodes[i]) && has_bias(g, &g->nodes[i]);
    for (i = 0; i < g->n_nodes; i++) {
        if (biased[i] || !is_product(g, &g->nodes[i]) || is_answered(g, opts, &g->nodes[i]))
            continue;
        if (opts->n_trainable == 0 && has_sibling(g, &g->nodes[i], biased)) {
            if (n_certain == 0)
                weight = g->values[g->nodes[i].in[1]].name;
            add_name(&certain, &n_certain, &g->nodes[i]);
        } else {
            add_name(&possible, &n_possible, &g->nodes[i]);
        }
    }
    rc = report(g, opts, &certain, n_certain, weight, &possible, n_possible, err);
    buf_fini(&certain);
    buf_fini(&possible);
    arena_fini(&mem);
    return rc;
}
