#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

enum { MOST = 4 /* maximum number of tensors */ };

struct sum {
    const char *equation;
    const char *meaning; /* the equation with one letter per axis and an explicit "->"; NULL: the
                            equation itself */
    struct shape in[MOST];
};

#define S(...) GRADCHECK_SHAPE(__VA_ARGS__)

static const struct sum cases[] = {
    /* attention, in the notation of several projects */
    { "bhqd,bhkd->bhqk", NULL, { S(2, 3, 5, 8), S(2, 3, 7, 8) } },
    { "bhqk,bhkd->bhqd", NULL, { S(2, 3, 5, 7), S(2, 3, 7, 8) } },
    { "bqhd,bkhd->bhqk", NULL, { S(2, 5, 3, 8), S(2, 17, 3, 8) } },
    { "bhqk,bkhd->bqhd", NULL, { S(2, 3, 9, 17), S(2, 17, 3, 8) } },
    { "ibnd,jbnd->bnij", NULL, { S(5, 2, 3, 8), S(6, 2, 3, 8) } },
    { "abc,cde->abde", NULL, { S(3, 4, 9), S(9, 2, 8) } },
    { "abc,dec->abde", NULL, { S(3, 4, 9), S(2, 8, 9) } },
    { "bij,bjk->bik", NULL, { S(3, 17, 9), S(3, 9, 5) } },
    { "bij,bjk->bki", NULL, { S(3, 17, 9), S(3, 9, 5) } },
    { "jib,bjk->bki", NULL, { S(9, 17, 3), S(3, 9, 5) } },
    { "ji,kj->ik", NULL, { S(33, 8), S(9, 33) } },
    { "ij,jk", "ij,jk->ik", { S(16, 9), S(9, 8) } },
    { "ba,ca", "ba,ca->bc", { S(16, 9), S(7, 9) } },
    { " i j , j k -> k i ", "ij,jk->ki", { S(16, 9), S(9, 8) } },
    { "aij,ajk->ik", NULL, { S(3, 8, 9), S(3, 9, 8) } },
    /* a is summed when the input is packed */
    { "aij,jk->ik", NULL, { S(3, 8, 9), S(9, 8) } },
    { "ij,ajkc->ik", NULL, { S(8, 9), S(3, 9, 8, 2) } },
    { "iij,jk->ik", NULL, { S(8, 8, 9), S(9, 8) } },       /* a diagonal */
    { "iijj,jkk->ik", NULL, { S(5, 5, 6, 6), S(6, 20, 20) } },
    /* broadcast axes */
    { "...ij,...jk->...ik", "xyij,xyjk->xyik", { S(2, 3, 8, 9), S(2, 3, 9, 8) } },
    { "...ij,...jk->...ik", "xyij,yjk->xyik", { S(2, 3, 8, 9), S(3, 9, 8) } },
    { "...ij,...jk", "xyij,xyjk->xyik", { S(2, 1, 8, 9), S(1, 3, 9, 8) } },
    { "i...,i...->...", "ixy,iy->xy", { S(4, 2, 3), S(4, 3) } },
    { "...d,de->...e", "xyd,de->xye", { S(3, 5, 9), S(9, 8) } },
    /* not a matrix product */
    { "i,i->", NULL, { S(700), S(700) } },
    { "i,j->ij", NULL, { S(5), S(7) } },
    { "ij,ij->ij", NULL, { S(5, 7), S(5, 7) } },
    { "ij,ij->", NULL, { S(5, 7), S(5, 7) } },
    { "bi,bi->b", NULL, { S(6, 130), S(6, 130) } },
    { "bi,bij->bj", NULL, { S(6, 3), S(6, 3, 4) } },
    { "bhi,i->bhi", NULL, { S(3, 4, 5), S(5) } },
    { "bhwc,bc->bhwc", NULL, { S(2, 3, 4, 5), S(2, 5) } },
    { "bhwc,bhwc->c", NULL, { S(2, 3, 4, 140), S(2, 3, 4, 140) } },
    { "i,->i", NULL, { S(5), { 0 } } },
    { ",->", NULL, { { 0 }, { 0 } } },
    { "a,b->", NULL, { S(5), S(3) } },
    { "i,i->i", NULL, { S(1), S(1) } },
    /* one tensor */
    { "ij->ji", NULL, { S(5, 7) } },
    { "abcd->dbca", NULL, { S(2, 3, 4, 5) } },
    { "ii->i", NULL, { S(5, 5) } },
    { "ii->", NULL, { S(5, 5) } },
    { "iji->j", NULL, { S(4, 3, 4) } },
    { "ij->", NULL, { S(5, 7) } },
    { "ij->j", NULL, { S(300, 7) } },
    { "ij->i", NULL, { S(5, 700) } },
    { "ba", "ba->ab", { S(5, 7) } },
    { "...i->i...", "xyi->ixy", { S(2, 3, 4) } },
    { "i...j", "ixj->xij", { S(2, 3, 4) } },
    { "->", NULL, { { 0 } } },
    /* chains */
    { "ij,jk,kl->il", NULL, { S(5, 9), S(9, 3), S(3, 17) } },
    { "ij,jk,kl", "ij,jk,kl->il", { S(17, 3), S(3, 9), S(9, 5) } },
    { "bij,bjk,bkl,lm->bim", NULL, { S(2, 5, 7), S(2, 7, 6), S(2, 6, 9), S(9, 4) } },
    { "i,j,k->ijk", NULL, { S(3), S(4), S(5) } },
    { "i,i,i->", NULL, { S(70), S(70), S(70) } },
    { "i,i,i->i", NULL, { S(7), S(7), S(7) } },
    { "bi,oij,bj->bo", NULL, { S(6, 5), S(3, 5, 7), S(6, 7) } }, /* bilinear */
    { "bn,anm,bm->ba", NULL, { S(2, 17), S(9, 17, 8), S(2, 8) } },
    { "ii,ij,jj->i", NULL, { S(5, 5), S(5, 6), S(6, 6) } },
    { "...ij,...jk,kl->...il", "xyij,yjk,kl->xyil", { S(2, 3, 4, 5), S(3, 5, 6), S(6, 7) } },
    { "...a,...a,b->...b", "xya,ya,b->xyb", { S(2, 1, 4), S(3, 4), S(5) } },
    { "a,bc,,d->dcba", NULL, { S(2), S(3, 4), { 0 }, S(5) } },
    { "ij,jk,kl->il", NULL, { S(5, 0), S(0, 3), S(3, 7) } },
    { "ij,jk,kl->il", NULL, { S(5, 4), S(4, 0), S(0, 7) } },
    /* without elements */
    { "ij,jk->ik", NULL, { S(3, 0), S(0, 4) } },
    { "ij,jk->ik", NULL, { S(0, 3), S(3, 4) } },
    { "bij,bjk->bik", NULL, { S(0, 20, 9), S(0, 9, 8) } },
    { "ij->j", NULL, { S(0, 3) } },
};

static uint32_t terms_of(const char *equation)
{
    uint32_t n = 1;

    for (; *equation != '\0'; equation++)
        n += *equation == ',';
    return n;
}

static void set(struct gradcheck_case *gc, struct op_attr *attr, const struct sum *c)
{
    uint32_t i;

    *attr = (struct op_attr){ .name = "equation", .type = OP_ATTR_STRING, .s = c->equation };
    *gc = (struct gradcheck_case){ .op = "Einsum", .opset = 12, .attrs = attr, .n_attrs = 1,
                                   .n_in = terms_of(c->equation), .seed = 31, .step = 1.0 / 4,
                                   .probes = 60 };
    for (i = 0; i < gc->n_in; i++)
        gc->in[i].shape = c->in[i];
}

/* ---- the definition: one nested loop over all letters ---- */

struct meaning {
    int n;                      /* number of inputs */
    const char *term[MOST + 1]; /* the terms of the inputs, then of the output */
    int len[MOST + 1];
    int64_t size[128];
};

static void read_meaning(const struct sum *c, struct meaning *m)
{
    const char *text = c->meaning != NULL ? c->meaning : c->equation;
    const char *arrow = strstr(text, "->");
    int i, k;

    memset(m, 0, sizeof(*m));
    m->n = (int)terms_of(text);
    for (i = 0; i < m->n; i++, text += m->len[i - 1] + 1) {
        m->term[i] = text;
        m->len[i] = (int)strcspn(text, ",-");
    }
    m->term[m->n] = arrow + 2;
    m->len[m->n] = (int)strlen(arrow + 2);
    for (i = 0; i < m->n; i++)
        for (k = 0; k < m->len[i]; k++)
            if (m->size[(int)m->term[i][k]] < 2)
                m->size[(int)m->term[i][k]] = c->in[i].dim[k];
}

static int64_t place(const struct meaning *m, int t, const struct shape *s, const int64_t *index)
{
    int64_t at = 0;
    int k;

    for (k = 0; k < m->len[t]; k++) {
        int letter = m->term[t][k];
        int64_t dim = s != NULL ? s->dim[k] : m->size[letter];

        at = at * dim + (dim == 1 ? 0 : index[letter]);
    }
    return at;
}

static void expect_sum(const struct sum *c, const struct gradcheck_result *r)
{
    size_t n = (size_t)tensor_elements(&r->out[0]);
    double *want = calloc(n + 1, sizeof(*want));
    int64_t index[128] = { 0 };
    struct meaning m;
    bool any = true;
    int i, k;

    read_meaning(c, &m);
    assert_int_equal(r->out[0].shape.rank, m.len[m.n]);
    for (k = 0; k < m.len[m.n]; k++)
        assert_int_equal(r->out[0].shape.dim[k], m.size[(int)m.term[m.n][k]]);
    for (k = 0; k < 128; k++)
        for (i = 0; i < m.n; i++)
            any = any && !(m.size[k] == 0 && memchr(m.term[i], k, (size_t)m.len[i]) != NULL);
    while (any) {
        double product = 1;

        for (i = 0; i < m.n; i++)
            product *= oracle_at(&r->in[i], (size_t)place(&m, i, &c->in[i], index));
        want[place(&m, m.n, NULL, index)] += product;
        for (k = 0; k < 128; k++) {
            if (m.size[k] < 2)
                continue;
            if (++index[k] < m.size[k])
                break;
            index[k] = 0;
        }
        any = k < 128;
    }
    gradcheck_near(c->equation, r->out[0].data, want, n, 3e-6);
    free(want);
}

static void every_equation_follows_definition(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_case gc;
        struct gradcheck_result r;
        struct op_attr attr;
        struct err err = { 0 };

        set(&gc, &attr, &cases[i]);
        if (gradcheck_forward(&gc, &r, &err) < 0)
            fail_msg("'%s': %s", cases[i].equation, err.text);
        expect_sum(&cases[i], &r);
        gradcheck_free(&r);
    }
}

static void gradients_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_case gc;
        struct op_attr attr;

        set(&gc, &attr, &cases[i]);
        gradcheck_run(&gc);
    }
}

static void invalid_equation_is_rejected_with_text(void **state)
{
    static const struct {
        const char *equation, *says;
        int code;
    } bad[] = {
        { "", "attribute 'equation' is missing", ERR_INPUT },
        { "ij,jk->il", "the output names an axis that no input has", ERR_INPUT },
        { "ij,jk->ii", "the output repeats an axis", ERR_INPUT },
        { "ij->ij", "it has fewer terms than the node has inputs", ERR_INPUT },
        { "ij,jk,kl->il", "it has more terms than the node has inputs", ERR_INPUT },
        { "ijk,jk->i", "term 0 names 3 axes; input 0 has shape [2, 3]", ERR_INPUT },
        { "i,jk->i", "term 0 names 1 axes; input 0 has shape [2, 3]", ERR_INPUT },
        { "ij,ik->jk", "axis 0 of input 1, 'i', has 3 elements; elsewhere it has 2", ERR_INPUT },
        { "...,...->...", "axis 0 of input 1, '.', has 3 elements; elsewhere it has 2", ERR_INPUT },
        { "i.j,jk->ik", "a term consists of letters and at most one '...'", ERR_INPUT },
        { "...i...,jk->ik", "a term consists of letters and at most one '...'", ERR_INPUT },
        { "ij,jk-ik", "a '-' without '>'", ERR_INPUT },
        { "ij,jk->ik->i", "something follows the output", ERR_INPUT },
        { "...,...k->k", "the output lacks the '...' of the inputs", ERR_INPUT },
        { "i1,jk->ik", "a term consists of letters", ERR_INPUT },
        { "abcdefghijklmnopqrstuvwxyz,jk->ik", "a term has too many axes", ERR_INPUT },
    };
    static const struct sum c = { "ij,jk->ik", NULL, { S(2, 3), S(3, 4) } };
    struct gradcheck_case gc;
    struct op_attr attr;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad); i++) {
        set(&gc, &attr, &c);
        attr.s = bad[i].equation;
        oracle_refused(&gc, bad[i].code, "Einsum 'checked' (opset 12): ");
        oracle_refused(&gc, bad[i].code, bad[i].says);
    }
    set(&gc, &attr, &c);
    gc.n_in = 3;
    gc.in[0].shape = gc.in[1].shape = gc.in[2].shape = (struct shape)S(2, 2, 2, 2, 2, 2, 2, 2);
    attr.s = "abcdefgh,hijklmno,oabcdijk->aefgjlmn";
    oracle_refused(&gc, ERR_UNSUPPORTED, "no two of its tensors have a product of at most 8 axes");
    gc.n_in = 9;
    for (i = 2; i < 9; i++)
        gc.in[i].shape = gc.in[0].shape;
    oracle_refused(&gc, ERR_UNSUPPORTED,
                   "has 9 terms; at most 8 are supported: write it as several nodes");
    gc.n_in = 2;
    gc.in[0].shape = (struct shape)S(1, 2, 1, 2, 1, 2, 1, 2);
    gc.in[1].shape = (struct shape)S(1, 2);
    attr.s = "abcdefgh,ij->abcdefghi";
    oracle_refused(&gc, ERR_UNSUPPORTED, "the output has 9 axes; at most 8 are supported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_equation_follows_definition),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(invalid_equation_is_rejected_with_text),
    };

    return cmocka_run_group_tests_name("op/einsum", tests, NULL, NULL);
}
