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

struct sum {
    const char *equation;
    const char *meaning; /* every axis a letter, "->" written out; NULL: the equation itself */
    struct shape in[2];
    bool one;            /* input */
};

#define S(...) GRADCHECK_SHAPE(__VA_ARGS__)

static const struct sum cases[] = {
    /* attention, as it is written in various places */
    { "bhqd,bhkd->bhqk", NULL, { S(2, 3, 5, 8), S(2, 3, 7, 8) }, false },
    { "bhqk,bhkd->bhqd", NULL, { S(2, 3, 5, 7), S(2, 3, 7, 8) }, false },
    { "bqhd,bkhd->bhqk", NULL, { S(2, 5, 3, 8), S(2, 17, 3, 8) }, false },
    { "bhqk,bkhd->bqhd", NULL, { S(2, 3, 9, 17), S(2, 17, 3, 8) }, false },
    { "ibnd,jbnd->bnij", NULL, { S(5, 2, 3, 8), S(6, 2, 3, 8) }, false },
    { "abc,cde->abde", NULL, { S(3, 4, 9), S(9, 2, 8) }, false },
    { "abc,dec->abde", NULL, { S(3, 4, 9), S(2, 8, 9) }, false },
    { "bij,bjk->bik", NULL, { S(3, 17, 9), S(3, 9, 5) }, false },
    { "bij,bjk->bki", NULL, { S(3, 17, 9), S(3, 9, 5) }, false },
    { "jib,bjk->bki", NULL, { S(9, 17, 3), S(3, 9, 5) }, false },
    { "ji,kj->ik", NULL, { S(33, 8), S(9, 33) }, false },
    { "ij,jk", "ij,jk->ik", { S(16, 9), S(9, 8) }, false },
    { "ba,ca", "ba,ca->bc", { S(16, 9), S(7, 9) }, false },
    { " i j , j k -> k i ", "ij,jk->ki", { S(16, 9), S(9, 8) }, false },
    { "aij,ajk->ik", NULL, { S(3, 8, 9), S(3, 9, 8) }, false },
    { "aij,jk->ik", NULL, { S(3, 8, 9), S(9, 8) }, false },       /* a is summed on the way in */
    { "ij,ajkc->ik", NULL, { S(8, 9), S(3, 9, 8, 2) }, false },
    { "iij,jk->ik", NULL, { S(8, 8, 9), S(9, 8) }, false },       /* a diagonal */
    { "iijj,jkk->ik", NULL, { S(5, 5, 6, 6), S(6, 20, 20) }, false },
    /* broadcast axes */
    { "...ij,...jk->...ik", "xyij,xyjk->xyik", { S(2, 3, 8, 9), S(2, 3, 9, 8) }, false },
    { "...ij,...jk->...ik", "xyij,yjk->xyik", { S(2, 3, 8, 9), S(3, 9, 8) }, false },
    { "...ij,...jk", "xyij,xyjk->xyik", { S(2, 1, 8, 9), S(1, 3, 9, 8) }, false },
    { "i...,i...->...", "ixy,iy->xy", { S(4, 2, 3), S(4, 3) }, false },
    { "...d,de->...e", "xyd,de->xye", { S(3, 5, 9), S(9, 8) }, false },
    { "...ij,jk->ik", "xij,jk->ik", { S(3, 8, 9), S(9, 8) }, false },
    /* no matrix product */
    { "i,i->", NULL, { S(700), S(700) }, false },
    { "i,j->ij", NULL, { S(5), S(7) }, false },
    { "ij,ij->ij", NULL, { S(5, 7), S(5, 7) }, false },
    { "ij,ij->", NULL, { S(5, 7), S(5, 7) }, false },
    { "bi,bi->b", NULL, { S(6, 130), S(6, 130) }, false },
    { "bi,bij->bj", NULL, { S(6, 3), S(6, 3, 4) }, false },
    { "bhi,i->bhi", NULL, { S(3, 4, 5), S(5) }, false },
    { "bhwc,bc->bhwc", NULL, { S(2, 3, 4, 5), S(2, 5) }, false },
    { "bhwc,bhwc->c", NULL, { S(2, 3, 4, 140), S(2, 3, 4, 140) }, false },
    { "i,->i", NULL, { S(5), { 0 } }, false },
    { ",->", NULL, { { 0 }, { 0 } }, false },
    { "a,b->", NULL, { S(5), S(3) }, false },
    { "i,i->i", NULL, { S(1), S(1) }, false },
    /* one tensor */
    { "ij->ji", NULL, { S(5, 7) }, true },
    { "abcd->dbca", NULL, { S(2, 3, 4, 5) }, true },
    { "ii->i", NULL, { S(5, 5) }, true },
    { "ii->", NULL, { S(5, 5) }, true },
    { "iji->j", NULL, { S(4, 3, 4) }, true },
    { "ij->", NULL, { S(5, 7) }, true },
    { "ij->j", NULL, { S(300, 7) }, true },
    { "ij->i", NULL, { S(5, 700) }, true },
    { "ba", "ba->ab", { S(5, 7) }, true },
    { "...i->i...", "xyi->ixy", { S(2, 3, 4) }, true },
    { "i...j", "ixj->xij", { S(2, 3, 4) }, true },
    { "->", NULL, { { 0 } }, true },
    /* without elements */
    { "ij,jk->ik", NULL, { S(3, 0), S(0, 4) }, false },
    { "ij,jk->ik", NULL, { S(0, 3), S(3, 4) }, false },
    { "bij,bjk->bik", NULL, { S(0, 20, 9), S(0, 9, 8) }, false },
    { "ij->j", NULL, { S(0, 3) }, true },
};

static void set(struct gradcheck_case *gc, struct op_attr *attr, const struct sum *c)
{
    *attr = (struct op_attr){ .name = "equation", .type = OP_ATTR_STRING, .s = c->equation };
    *gc = (struct gradcheck_case){ .op = "Einsum", .opset = 12, .attrs = attr, .n_attrs = 1,
                                   .n_in = c->one ? 1 : 2, .seed = 31, .step = 1.0 / 4,
                                   .probes = 60 };
    gc->in[0].shape = c->in[0];
    gc->in[1].shape = c->in[1];
}

/* ---- the definition: every letter runs over its size, all loops in one ---- */

struct meaning {
    const char *term[3]; /* x, y, output */
    int len[3];
    int64_t size[128];
};

static void read_meaning(const struct sum *c, struct meaning *m)
{
    const char *text = c->meaning != NULL ? c->meaning : c->equation;
    const char *arrow = strstr(text, "->"), *comma = strchr(text, ',');
    int i, k;

    memset(m, 0, sizeof(*m));
    m->term[0] = text;
    m->len[0] = (int)((c->one ? arrow : comma) - text);
    m->term[1] = c->one ? text : comma + 1;
    m->len[1] = c->one ? 0 : (int)(arrow - comma - 1);
    m->term[2] = arrow + 2;
    m->len[2] = (int)strlen(arrow + 2);
    for (i = 0; i < 2; i++)
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
    const float *x = r->in[0].data, *y = r->in[1].data;
    double *want = calloc(n + 1, sizeof(*want));
    int64_t index[128] = { 0 };
    struct meaning m;
    bool any = true;
    int i, k;

    read_meaning(c, &m);
    assert_int_equal(r->out[0].shape.rank, m.len[2]);
    for (k = 0; k < m.len[2]; k++)
        assert_int_equal(r->out[0].shape.dim[k], m.size[(int)m.term[2][k]]);
    for (k = 0; k < 128; k++)
        for (i = 0; i < 2; i++)
            any = any && !(m.size[k] == 0 && memchr(m.term[i], k, (size_t)m.len[i]) != NULL);
    while (any) {
        want[place(&m, 2, NULL, index)] +=
            (double)x[place(&m, 0, &c->in[0], index)] *
            (c->one ? 1 : (double)y[place(&m, 1, &c->in[1], index)]);
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

static void every_equation_is_the_sum_it_names(void **state)
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

static void gradients_agree_with_differences(void **state)
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

static void what_is_no_equation_of_these_tensors_is_refused_with_it(void **state)
{
    static const struct {
        const char *equation, *says;
        int code;
    } bad[] = {
        { "", "attribute 'equation' is missing", ERR_INPUT },
        { "ij,jk->il", "the output names an axis that no input has", ERR_INPUT },
        { "ij,jk->ii", "the output names an axis twice", ERR_INPUT },
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
        { "i1,jk->ik", "a term consists of letters", ERR_INPUT },
        { "abcdefghijklmnopqrstuvwxyz,jk->ik", "a term has too many axes", ERR_INPUT },
    };
    static const struct sum c = { "ij,jk->ik", NULL, { S(2, 3), S(3, 4) }, false };
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
    gc.in[2].shape = c.in[0];
    attr.s = "ij,jk,lk->il";
    oracle_refused(&gc, ERR_UNSUPPORTED, "has 3 terms; at most 2 work");
    gc.n_in = 2;
    gc.in[0].shape = (struct shape)S(1, 2, 1, 2, 1, 2, 1, 2);
    gc.in[1].shape = (struct shape)S(1, 2);
    attr.s = "abcdefgh,ij->abcdefghi";
    oracle_refused(&gc, ERR_UNSUPPORTED, "the output has 9 axes; at most 8 work");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_equation_is_the_sum_it_names),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(what_is_no_equation_of_these_tensors_is_refused_with_it),
    };

    return cmocka_run_group_tests_name("op/einsum", tests, NULL, NULL);
}
