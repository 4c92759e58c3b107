/* einsum.c - Einsum, float32. The equation names every axis by a letter; "..." stands for axes that
 * broadcast as in NumPy, and the output has it too. Axes that are absent in the output are summed
 * over; without "->" the output has the ellipsis and, in alphabetical order, the letters that occur
 * once. A letter that is repeated in one term selects its diagonal. The gradient of an input is an
 * Einsum of dy and the other inputs. More than two tensors are multiplied two at a time
 * (einsum_chain.c). */
#include "op/gemm/einsum.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"

enum { LETTERS = EINSUM_LETTERS, LABELS = EINSUM_LABELS };

struct term {
    uint32_t rank;
    uint8_t label[2 * TENSOR_MAX_RANK];
    bool has_dots;
};

struct equation {
    const char *text;
    int64_t size[LABELS]; /* -1: label is absent */
    uint32_t dots;        /* axes of the ellipsis; label LETTERS + i is the i-th from the end */
    struct term in[EINSUM_TERMS], out;
};

static bool is_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Alphabetical order: capitals first, as in ASCII. */
static uint8_t label_of(char c)
{
    return (uint8_t)(c <= 'Z' ? c - 'A' : 26 + c - 'a');
}

static char letter_of(uint32_t label)
{
    return (char)(label < 26 ? 'A' + label : 'a' + label - 26);
}

static int equation_error(const struct op_infer *f, const struct equation *e, const char *why,
                          struct err *err)
{
    return op_error(f, ERR_INPUT, err, "equation '%s': %s", e->text, why);
}

/* Reads a term up to its end, "," or "->". The ellipsis becomes `dots` labels. */
static int read_term(const struct op_infer *f, struct equation *e, const char **at, uint32_t dots,
                     struct term *t, struct err *err)
{
    uint32_t i;

    for (; **at != '\0' && **at != ',' && **at != '-'; (*at)++) {
        if (**at == ' ')
            continue;
        if (t->rank + dots + 1 > sizeof(t->label))
            return equation_error(f, e, "a term has too many axes", err);
        if (is_letter(**at)) {
            t->label[t->rank++] = label_of(**at);
        } else if (strncmp(*at, "...", 3) == 0 && !t->has_dots) {
            t->has_dots = true;
            for (i = dots; i-- > 0;)
                t->label[t->rank++] = (uint8_t)(LETTERS + i);
            *at += 2;
        } else {
            return equation_error(f, e, "a term consists of letters and at most one '...'", err);
        }
    }
    return 0;
}

/* Returns the number of axes of the ellipsis of a term whose tensor has `rank` axes. */
static uint32_t dots_in(const char *at, uint32_t rank)
{
    uint32_t letters = 0;

    for (; *at != '\0' && *at != ',' && *at != '-'; at++)
        letters += is_letter(*at);
    return letters < rank ? rank - letters : 0;
}

static int match(const struct op_infer *f, struct equation *e, uint32_t i, struct err *err)
{
    const struct shape *s = &f->in[i]->shape;
    const struct term *t = &e->in[i];
    char text[192];
    uint32_t k;

    if (t->rank != s->rank)
        return op_error(f, ERR_INPUT, err, "equation '%s': term %u names %u axes; input %u has "
                        "shape %s", e->text, i, t->rank, i, shape_print(s, text, sizeof(text)));
    for (k = 0; k < s->rank; k++) {
        int64_t *size = &e->size[t->label[k]];
        bool is_dots = t->label[k] >= LETTERS;

        if (*size < 0 || (is_dots && *size == 1))
            *size = s->dim[k];
        else if (*size != s->dim[k] && !(is_dots && s->dim[k] == 1))
            return op_error(f, ERR_INPUT, err, "equation '%s': axis %u of input %u, '%c', has "
                            "%" PRId64 " elements; elsewhere it has %" PRId64, e->text, k, i,
                            is_dots ? '.' : letter_of(t->label[k]), s->dim[k], *size);
    }
    return 0;
}

static int read_inputs(const struct op_infer *f, struct equation *e, const char **at,
                       struct err *err)
{
    uint32_t i, dots;
    int rc = 0;

    for (i = 0; i < f->n_in && rc == 0; i++) {
        if (i > 0 && *(*at)++ != ',')
            return equation_error(f, e, "it has fewer terms than the node has inputs", err);
        dots = dots_in(*at, f->in[i]->shape.rank);
        rc = read_term(f, e, at, dots, &e->in[i], err);
        if (rc == 0)
            rc = match(f, e, i, err);
        if (rc == 0 && e->in[i].has_dots && dots > e->dots)
            e->dots = dots;
    }
    if (rc == 0 && **at == ',')
        rc = equation_error(f, e, "it has more terms than the node has inputs", err);
    return rc;
}

/* Derives the output of an equation without "->". */
static void implied_output(struct equation *e)
{
    uint32_t count[LABELS] = { 0 }, i, k;

    for (i = 0; i < EINSUM_TERMS; i++)
        for (k = 0; k < e->in[i].rank; k++)
            count[e->in[i].label[k]]++;
    for (k = e->dots; k-- > 0;)
        e->out.label[e->out.rank++] = (uint8_t)(LETTERS + k);
    for (k = 0; k < LETTERS; k++)
        if (count[k] == 1 && e->out.rank < sizeof(e->out.label))
            e->out.label[e->out.rank++] = (uint8_t)k;
}

static int check_output(const struct op_infer *f, const struct equation *e, struct err *err)
{
    bool seen[LABELS] = { false };
    uint32_t k;

    if (e->out.rank > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "equation '%s': the output has %u axes; at most %d are supported", e->text,
                        e->out.rank, TENSOR_MAX_RANK);
    for (k = 0; k < e->out.rank; k++) {
        if (e->size[e->out.label[k]] < 0)
            return equation_error(f, e, "the output names an axis that no input has", err);
        if (seen[e->out.label[k]])
            return equation_error(f, e, "the output repeats an axis", err);
        seen[e->out.label[k]] = true;
    }
    return 0;
}

/* Adds up the strides of a plain tensor of this shape by label. */
static void add_steps(const struct term *t, const struct shape *s, struct einsum_term *out)
{
    bool seen[LABELS] = { false };
    ptrdiff_t dense = 1;
    uint32_t k;

    *out = (struct einsum_term){ { 0 }, false };
    for (k = s->rank; k-- > 0;) {
        out->diagonal = out->diagonal || seen[t->label[k]];
        seen[t->label[k]] = true;
        out->step[t->label[k]] += s->dim[k] == 1 ? 0 : dense;
        dense *= s->dim[k] > 0 ? (ptrdiff_t)s->dim[k] : 1;
    }
}

static int settle(struct op_infer *f, const struct equation *e, struct err *err)
{
    struct einsum_term in[EINSUM_TERMS], out;
    struct shape *y = &f->out[0].shape;
    uint32_t i, k;
    int rc;

    f->out[0].dtype = TENSOR_F32;
    y->rank = e->out.rank;
    for (k = 0; k < y->rank; k++)
        y->dim[k] = e->size[e->out.label[k]];
    rc = op_check_size(f, err);
    if (rc < 0)
        return rc;
    for (i = 0; i < f->n_in; i++)
        add_steps(&e->in[i], &f->in[i]->shape, &in[i]);
    add_steps(&e->out, y, &out);
    return einsum_order(f, e->text, e->size, in, &out, err);
}

static int infer(struct op_infer *f, struct err *err)
{
    struct equation e = { 0 };
    const char *at;
    uint32_t i;
    int rc = op_attr_s(f, "equation", "", &e.text, err);

    if (rc == 0 && e.text[0] == '\0')
        rc = op_error(f, ERR_INPUT, err, "attribute 'equation' is missing");
    if (rc == 0 && f->n_in > EINSUM_TERMS)
        rc = op_error(f, ERR_UNSUPPORTED, err,
                      "equation '%s' has %u terms; at most %d are supported: write "
                      "it as several nodes",
                      e.text, f->n_in, EINSUM_TERMS);
    for (i = 0; i < f->n_in && rc == 0; i++)
        rc = op_check_input(f, i, TENSOR_F32, -1, err);
    if (rc < 0)
        return rc;
    for (i = 0; i < LABELS; i++)
        e.size[i] = -1;
    at = e.text;
    rc = read_inputs(f, &e, &at, err);
    if (rc < 0)
        return rc;
    if (strncmp(at, "->", 2) == 0) {
        at += 2;
        rc = read_term(f, &e, &at, e.dots, &e.out, err);
        if (rc == 0 && *at != '\0')
            rc = equation_error(f, &e, "something follows the output", err);
        if (rc == 0 && e.dots > 0 && !e.out.has_dots) /* as in NumPy */
            rc = equation_error(
                f, &e,
                "the output lacks the '...' of the inputs: add it, or name the axes by letters",
                err);
    } else if (*at != '\0') {
        rc = equation_error(f, &e, "a '-' without '>'", err);
    } else {
        implied_output(&e);
    }
    if (rc == 0)
        rc = check_output(f, &e, err);
    return rc < 0 ? rc : settle(f, &e, err);
}

static double flops(const struct op_infer *f)
{
    const struct einsum *p = f->param;
    double all = 0, n;
    uint32_t i, k;

    for (i = 0; i < p->n_steps; i++) {
        for (k = 0, n = 2; k < p->step[i].pair.n; k++)
            n *= (double)p->step[i].pair.size[k];
        all += n;
    }
    return all;
}

static const char *const attrs[] = { "equation", NULL };

const struct op_def op_einsum = {
    .name = "Einsum",
    .since = 12,
    .n_in = { 1, OP_MANY },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct einsum),
    .infer = infer,
    .diff = 0xFFFF,
    .bwd_reads = 0xFFFF,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { einsum_cpu_plan, einsum_chain_fwd, einsum_cpu_bwd, einsum_chain_free },
    .flops = flops,
};
