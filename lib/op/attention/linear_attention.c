/* linear_attention.c - LinearAttention (opset 27). Each sample and head of k and v has a state S
 * [d, dv]. For each token, with decay g and beta b:
 *   A = e^g S        per row of S if decay is [batch, t, key_heads * d], for all of S if it is
 *                    [.., key_heads];
 *                    A = S if the update rule has no decay (linear, delta)
 *   u = b (v - A^T k); u = v if the rule has no beta (linear, gated)
 *   S = A + k u^T
 *   o = scale S^T q  for each query head that reads this head of k and v
 * past_state [batch, key_heads, d, dv] is the initial state, else zeros; output 1 is the final one.
 *
 * The gradient runs from the last token to the first, with dS the gradient of S:
 *   dq = scale S do       dS += scale q do^T
 *   du = dS^T k           dk = dS u
 *   dv = b du             db = du (v - A^T k)       dk -= A (b du)      dA = dS - k (b du)^T
 *   dg = row sums of dA A     dS = e^g dA
 * It needs the state before each token. A training plan saves the state before every chunk-th
 * token, and backward recomputes the states of a chunk: about sqrt(t) states are saved, and as many
 * are in scratch. chunk_size, which is only a hint about speed, is ignored. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/attention/linear_attention.h"
#include "op/simd.h"
#include "op/op_priv.h"
#include "op/vmath.h"

#define STATES_MAX 0x1p38 /* limit of the numbers in all saved states, and in all states in
                             scratch */

/* ---- infer ---- */

static int read_rule(const struct op_infer *f, struct linear_attention *a, struct err *err)
{
    const char *rule;
    int rc = op_attr_s(f, "update_rule", "gated_delta", &rule, err);

    if (rc < 0)
        return rc;
    a->has_decay = strcmp(rule, "gated") == 0 || strcmp(rule, "gated_delta") == 0;
    a->has_beta = strcmp(rule, "delta") == 0 || strcmp(rule, "gated_delta") == 0;
    if (!a->has_decay && !a->has_beta && strcmp(rule, "linear") != 0)
        return op_error(f, ERR_INPUT, err,
                        "update_rule '%s'; expected linear, gated, delta or gated_delta", rule);
    if (a->has_decay != (f->n_in > LINEAR_DECAY && f->in[LINEAR_DECAY] != NULL) ||
        a->has_beta != (f->n_in > LINEAR_BETA && f->in[LINEAR_BETA] != NULL))
        return op_error(f, ERR_INPUT, err, "update_rule '%s': expected %s decay and %s beta", rule,
                        a->has_decay ? "an input" : "no", a->has_beta ? "an input" : "no");
    return 0;
}

/* Checks that input i is [batch, t, columns] and returns its columns. */
static int tokens(const struct op_infer *f, const struct linear_attention *a, uint32_t i,
                  int64_t *columns, struct err *err)
{
    const struct shape *s;
    char text[192];
    int rc = op_check_input(f, i, TENSOR_F32, 3, err);

    if (rc < 0)
        return rc;
    s = &f->in[i]->shape;
    if (s->dim[0] != a->batch || s->dim[1] != a->t)
        return op_error(f, ERR_INPUT, err, "input %" PRIu32 " has shape %s; expected [%" PRId64 ", %" PRId64 ", ..], "
                        "as input 0", i, shape_print(s, text, sizeof(text)), a->batch, a->t);
    *columns = s->dim[2];
    return 0;
}

static int read_heads(const struct op_infer *f, struct linear_attention *a, struct err *err)
{
    int64_t q, k, v;
    int rc = op_check_input(f, LINEAR_Q, TENSOR_F32, 3, err);

    if (rc == 0)
        rc = op_attr_i(f, "q_num_heads", 0, &a->heads, err);
    if (rc == 0)
        rc = op_attr_i(f, "kv_num_heads", 0, &a->key_heads, err);
    if (rc < 0)
        return rc;
    a->batch = f->in[LINEAR_Q]->shape.dim[0];
    a->t = f->in[LINEAR_Q]->shape.dim[1];
    rc = tokens(f, a, LINEAR_Q, &q, err);
    if (rc == 0)
        rc = tokens(f, a, LINEAR_K, &k, err);
    if (rc == 0)
        rc = tokens(f, a, LINEAR_V, &v, err);
    if (rc < 0)
        return rc;
    if (a->heads < 1 || a->key_heads < 1 || a->heads % a->key_heads != 0 || q % a->heads != 0 ||
        k % a->key_heads != 0 || v % a->key_heads != 0 || q / a->heads != k / a->key_heads || k == 0 || v == 0)
        return op_error(f, ERR_INPUT, err, "%" PRId64 ", %" PRId64 " and %" PRId64 " columns of query, key and value "
                        "with q_num_heads %" PRId64 " and kv_num_heads %" PRId64 "; expected q_num_heads to be a "
                        "multiple of kv_num_heads, and heads of query and key of one size", q, k, v, a->heads,
                        a->key_heads);
    a->d = k / a->key_heads;
    a->dv = v / a->key_heads;
    return 0;
}

static int read_gates(const struct op_infer *f, struct linear_attention *a, struct err *err)
{
    int64_t columns;
    int rc = 0;

    if (a->has_decay) {
        rc = tokens(f, a, LINEAR_DECAY, &columns, err);
        if (rc == 0 && columns != a->key_heads && columns != a->key_heads * a->d)
            rc = op_error(f, ERR_INPUT, err,
                          "decay has %" PRId64 " columns; expected %" PRId64 " or %" PRId64,
                          columns, a->key_heads, a->key_heads * a->d);
        a->decays = rc == 0 ? columns / a->key_heads : 0;
    }
    if (rc == 0 && a->has_beta) {
        rc = tokens(f, a, LINEAR_BETA, &a->betas, err);
        if (rc == 0 && a->betas != 1 && a->betas != a->key_heads)
            rc = op_error(f, ERR_INPUT, err, "beta has %" PRId64 " columns; expected 1 or %" PRId64,
                          a->betas, a->key_heads);
    }
    return rc;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct linear_attention *a = f->param;
    struct shape state;
    char text[192];
    int rc = read_heads(f, a, err);

    if (rc == 0)
        rc = read_rule(f, a, err);
    if (rc == 0)
        rc = read_gates(f, a, err);
    if (rc == 0)
        rc = op_attr_f(f, "scale", 0, &a->scale, err);
    if (rc < 0)
        return rc;
    if (a->scale == 0)
        a->scale = (float)(1 / sqrt((double)a->d));
    state = (struct shape){ .rank = 4, .dim = { a->batch, a->key_heads, a->d, a->dv } };
    if (f->n_in > LINEAR_PAST && f->in[LINEAR_PAST] != NULL) {
        rc = op_check_input(f, LINEAR_PAST, TENSOR_F32, 4, err);
        if (rc == 0 && !shape_equal(&f->in[LINEAR_PAST]->shape, &state))
            rc = op_error(f, ERR_INPUT, err, "past_state: expected shape %s",
                          shape_print(&state, text, sizeof(text)));
    }
    a->chunk = a->t > 1 ? (int64_t)ceil(sqrt((double)a->t)) : 1;
    a->n_chunks = (a->t + a->chunk - 1) / a->chunk;
    if (rc == 0 &&
        ((double)a->d * (double)a->dv * (double)(a->chunk + 3) > STATES_MAX ||
         (double)(a->batch * a->key_heads) * (double)(a->n_chunks * a->d) * (double)a->dv >
             STATES_MAX))
        rc = op_error(f, ERR_INPUT, err, "states of %" PRId64 " by %" PRId64 " are too large", a->d,
                      a->dv);
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = (struct shape){ .rank = 3, .dim = { a->batch, a->t, a->heads * a->dv } };
    if (f->n_out > 1) {
        f->out[1].dtype = TENSOR_F32;
        f->out[1].shape = state;
    }
    return rc == 0 ? op_check_size(f, err) : rc;
}

/* ---- a token ---- */

/* Dot product of two rows, in a fixed number of SIMD lanes. */
INLINED float dot(const float *a, const float *b, size_t n)
{
    float lane[OP_WIDE] = { 0 }, tail = 0;
    size_t i, k;

    for (i = 0; i + OP_WIDE <= n; i += OP_WIDE) {
        OP_EACH
        for (k = 0; k < OP_WIDE; k++)
            lane[k] += a[i + k] * b[i + k];
    }
    for (; i < n; i++)
        tail += a[i] * b[i];
    for (k = OP_WIDE / 2; k > 0; k /= 2)
        for (i = 0; i < k; i++)
            lane[i] += lane[i + k];
    return lane[0] + tail;
}

/* y += by x */
INLINED void add_row(float *y, const float *x, size_t n, float by)
{
    OP_EACH
    for (size_t i = 0; i < n; i++)
        y[i] += x[i] * by;
}

struct token { /* of one head of k and v */
    const float *k, *v;
    const float *g; /* decay; NULL: the rule has none */
    float beta;
};

/* y [dv] = s^T k */
INLINED void multiply_key(const struct linear_attention *a, const float *s, const float *k,
                          float *y)
{
    memset(y, 0, (size_t)a->dv * sizeof(*y));
    for (int64_t i = 0; i < a->d; i++)
        add_row(y, s + i * a->dv, (size_t)a->dv, k[i]);
}

/* to = A, the state s after the decay. They may be the same. */
INLINED void decay(const struct linear_attention *a, const struct token *t, const float *s,
                   float *to)
{
    const size_t n = (size_t)a->dv;

    for (int64_t i = 0; i < a->d; i++, s += n, to += n) {
        const float by = vm_exp(t->g[a->decays > 1 ? i : 0]);

        OP_EACH
        for (size_t j = 0; j < n; j++)
            to[j] = s[j] * by;
    }
}

/* Replaces s by the state after the token. u [dv]: scratch. */
CLONES static void advance(const struct linear_attention *a, const struct token *t, float *s,
                           float *u)
{
    const size_t n = (size_t)a->dv;

    if (t->g != NULL)
        decay(a, t, s, s);
    if (a->has_beta) {
        multiply_key(a, s, t->k, u);
        OP_EACH
        for (size_t j = 0; j < n; j++)
            u[j] = t->beta * (t->v[j] - u[j]);
    } else {
        memcpy(u, t->v, n * sizeof(*u));
    }
    for (int64_t i = 0; i < a->d; i++)
        add_row(s + i * a->dv, u, n, t->k[i]);
}

CLONES static void read_state(const struct linear_attention *a, const float *s, const float *q,
                              float *o)
{
    multiply_key(a, s, q, o);
    for (int64_t j = 0; j < a->dv; j++)
        o[j] *= a->scale;
}

struct slopes { /* gradients of a token; NULL: not requested */
    float *dk, *dv, *dg, *db;
};

/* The part of a query: stores dq [d] and adds its contribution to ds. s: the state after the
 * token. */
CLONES static void query_bwd(const struct linear_attention *a, const float *s, const float *q,
                             const float *d_o, float *dq, float *ds)
{
    const size_t n = (size_t)a->dv;

    for (int64_t i = 0; i < a->d; i++) {
        dq[i] = a->scale * dot(s + i * a->dv, d_o, n);
        add_row(ds + i * a->dv, d_o, n, a->scale * q[i]);
    }
}

/* On entry ds is the gradient of the state after the token, on return that of the state `before`
 * it. decayed [d, dv], u, r, du [dv]: scratch. Stores dk [d], dv [dv], dg [decays] and *db. */
CLONES static void token_bwd(const struct linear_attention *a, const struct token *t,
                             const float *before, float *decayed, float *u, float *r, float *du,
                             float *ds, const struct slopes *to)
{
    const float *at = before;
    const size_t n = (size_t)a->dv;
    float all = 0;

    if (t->g != NULL) {
        decay(a, t, before, decayed);
        at = decayed;
    }
    multiply_key(a, ds, t->k, du);
    if (a->has_beta) {
        multiply_key(a, at, t->k, r);
        for (size_t j = 0; j < n; j++)
            r[j] = t->v[j] - r[j];
        *to->db = dot(du, r, n);
        for (size_t j = 0; j < n; j++) {
            u[j] = t->beta * r[j];
            to->dv[j] = t->beta * du[j];
        }
    } else {
        memcpy(u, t->v, n * sizeof(*u));
        memcpy(to->dv, du, n * sizeof(*du));
    }
    for (int64_t i = 0; i < a->d; i++) {
        float *row = ds + i * a->dv, slope;

        to->dk[i] = dot(row, u, n);
        if (a->has_beta) {
            to->dk[i] -= dot(at + i * a->dv, to->dv, n);
            add_row(row, to->dv, n, -t->k[i]);
        }
        if (t->g == NULL)
            continue;
        slope = dot(row, at + i * a->dv, n);
        if (a->decays > 1)
            to->dg[i] = slope;
        all += slope;
    }
    if (t->g == NULL)
        return;
    if (a->decays == 1)
        to->dg[0] = all;
    decay(a, t, ds, ds);
}

/* ---- calls ---- */

static const float *input(const struct op_call *c, uint32_t i)
{
    return i < c->n_in && c->in[i] != NULL ? c->in[i]->data : NULL;
}

static float *output(const struct tensor *const *list, uint32_t n, uint32_t i)
{
    return i < n && list[i] != NULL ? list[i]->data : NULL;
}

/* Returns token i of sample b and head h of k and v. */
static struct token token_of(const struct op_call *c, int64_t b, int64_t h, int64_t i)
{
    const struct linear_attention *a = c->param;
    const int64_t at = b * a->t + i, head = at * a->key_heads + h;
    struct token t = { .k = input(c, LINEAR_K) + head * a->d, .v = input(c, LINEAR_V) + head * a->dv };

    if (a->has_decay)
        t.g = input(c, LINEAR_DECAY) + head * a->decays;
    if (a->has_beta)
        t.beta = input(c, LINEAR_BETA)[a->betas > 1 ? head : at];
    return t;
}

static void first_state(const struct op_call *c, int64_t head, float *s)
{
    const size_t n = (size_t)linear_state(c->param);
    const float *past = input(c, LINEAR_PAST);

    if (past != NULL)
        memcpy(s, past + (size_t)head * n, n * sizeof(*s));
    else
        memset(s, 0, n * sizeof(*s));
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct linear_attention *a = p->param;
    const size_t state = op_round((size_t)linear_state(a) * sizeof(float));

    (void)err; /* cannot fail */
    p->save_bytes = p->training ? (size_t)linear_kept(a) * sizeof(float) : 0;
    /* forward: a state, u; backward: the states of a chunk and one more, ds, decayed, and rows */
    p->scratch_bytes = (p->training ? (size_t)a->chunk + 3 : 1) * state +
                       5 * op_round((size_t)(a->d + a->dv) * sizeof(float));
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct linear_attention *a = c->param;
    const size_t n = (size_t)linear_state(a);
    const int64_t shared = a->heads / a->key_heads;
    float *s = c->scratch, *u = op_at(c->scratch, op_round(n * sizeof(*s))),
          *last = output(c->out, c->n_out, 1);

    (void)err; /* cannot fail */
    for (int64_t head = 0; head < a->batch * a->key_heads; head++) {
        const int64_t b = head / a->key_heads, h = head % a->key_heads;

        first_state(c, head, s);
        for (int64_t i = 0; i < a->t; i++) {
            const struct token t = token_of(c, b, h, i);

            if (c->save != NULL && i % a->chunk == 0)
                memcpy((float *)c->save + (size_t)(head * a->n_chunks + i / a->chunk) * n, s,
                       n * sizeof(*s));
            advance(a, &t, s, u);
            for (int64_t q = h * shared; q < (h + 1) * shared; q++) {
                const int64_t at = (b * a->t + i) * a->heads + q;

                read_state(a, s, input(c, LINEAR_Q) + at * a->d,
                           (float *)c->out[0]->data + at * a->dv);
            }
        }
        if (last != NULL)
            memcpy(last + (size_t)head * n, s, n * sizeof(*s));
    }
    return 0;
}

struct walk {
    const struct op_call *c;
    const struct linear_attention *a;
    float *states, *ds, *decayed; /* in scratch */
    float *row[5];                /* [d + dv] */
};

static void store_gradient(const struct op_call *c, uint32_t i, int64_t at, const float *from,
                           int64_t n)
{
    if (i < c->n_in && c->din[i] != NULL)
        op_store((float *)c->din[i]->data + at, from, (size_t)n, 1, op_adds(c, i));
}

static void one_token_bwd(const struct walk *w, int64_t b, int64_t h, int64_t i,
                          const float *before, const float *after)
{
    const struct op_call *c = w->c;
    const struct linear_attention *a = w->a;
    const int64_t shared = a->heads / a->key_heads, at = b * a->t + i, head = at * a->key_heads + h;
    const struct token t = token_of(c, b, h, i);
    const float *d_o = output(c->dout, c->n_out, 0);
    float dg_db[1], *dg = w->row[4], *dk = w->row[3], *d_v = w->row[3] + a->d;
    const struct slopes to = { .dk = dk, .dv = d_v, .dg = dg, .db = dg_db };

    for (int64_t q = h * shared; q < (h + 1) * shared; q++) {
        const int64_t place = at * a->heads + q;

        if (d_o == NULL)
            memset(w->row[0], 0, (size_t)a->d * sizeof(float));
        else
            query_bwd(a, after, input(c, LINEAR_Q) + place * a->d, d_o + place * a->dv, w->row[0],
                      w->ds);
        store_gradient(c, LINEAR_Q, place * a->d, w->row[0], a->d);
    }
    token_bwd(a, &t, before, w->decayed, w->row[0], w->row[1], w->row[2], w->ds, &to);
    store_gradient(c, LINEAR_K, head * a->d, dk, a->d);
    store_gradient(c, LINEAR_V, head * a->dv, d_v, a->dv);
    if (a->has_decay)
        store_gradient(c, LINEAR_DECAY, head * a->decays, dg, a->decays);
    /* zero, or the previous gradient: see backward() */
    if (a->has_beta && c->din[LINEAR_BETA] != NULL)
        ((float *)c->din[LINEAR_BETA]->data)[a->betas > 1 ? head : at] += dg_db[0];
}

/* Processes the tokens of a chunk, from the last to the first. */
static void chunk_bwd(const struct walk *w, int64_t head, int64_t chunk)
{
    const struct linear_attention *a = w->a;
    const int64_t b = head / a->key_heads, h = head % a->key_heads, first = chunk * a->chunk;
    const int64_t end = first + a->chunk < a->t ? first + a->chunk : a->t;
    const size_t n = (size_t)linear_state(a);
    int64_t i;

    memcpy(w->states, (const float *)w->c->save + (size_t)(head * a->n_chunks + chunk) * n,
           n * sizeof(float));
    for (i = first; i < end; i++) {
        const struct token t = token_of(w->c, b, h, i);
        float *s = w->states + (size_t)(i - first + 1) * n;

        memcpy(s, s - n, n * sizeof(*s));
        advance(a, &t, s, w->row[0]);
    }
    while (i-- > first)
        one_token_bwd(w, b, h, i, w->states + (size_t)(i - first) * n,
                      w->states + (size_t)(i - first + 1) * n);
}

static struct walk walk_of(const struct op_call *c)
{
    const struct linear_attention *a = c->param;
    struct walk w = { .c = c, .a = a };
    const size_t n = (size_t)linear_state(a), state = op_round(n * sizeof(float)),
                 row = op_round((size_t)(a->d + a->dv) * sizeof(float));

    w.ds = c->scratch;
    w.decayed = op_at(c->scratch, state);
    for (size_t i = 0; i < COUNT_OF(w.row); i++)
        w.row[i] = op_at(c->scratch, 2 * state + i * row);
    w.states = op_at(c->scratch, 2 * state + COUNT_OF(w.row) * row);
    return w;
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct linear_attention *a = c->param;
    const struct walk w = walk_of(c);
    const size_t n = (size_t)linear_state(a);
    const float *last = output(c->dout, c->n_out, 1);

    (void)err; /* cannot fail */
    if (c->dout[0] == NULL && last == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    if (a->has_beta && c->din[LINEAR_BETA] != NULL && !op_adds(c, LINEAR_BETA))
        memset(c->din[LINEAR_BETA]->data, 0, tensor_bytes(c->din[LINEAR_BETA]));
    for (int64_t head = 0; head < a->batch * a->key_heads; head++) {
        if (last != NULL)
            memcpy(w.ds, last + (size_t)head * n, n * sizeof(float));
        else
            memset(w.ds, 0, n * sizeof(float));
        for (int64_t chunk = a->n_chunks; chunk-- > 0;)
            chunk_bwd(&w, head, chunk);
        store_gradient(c, LINEAR_PAST, head * (int64_t)n, w.ds, (int64_t)n);
    }
    return 0;
}

static double flops(const struct op_infer *f)
{
    const struct linear_attention *a = f->param;

    return 2.0 * (double)(a->batch * a->t) *
           (double)(a->heads + (a->has_beta ? 2 : 1) * a->key_heads) * (double)linear_state(a);
}

static const char *const attrs[] = { "chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule", NULL };

const struct op_def op_linear_attention = {
    .name = "LinearAttention",
    .since = 27,
    .n_in = { 3, LINEAR_INPUTS },
    .n_out = { 1, 2 },
    .attrs = attrs,
    .param_bytes = sizeof(struct linear_attention),
    .infer = infer,
    .diff = OP_IN(LINEAR_Q) | OP_IN(LINEAR_K) | OP_IN(LINEAR_V) | OP_IN(LINEAR_PAST) | OP_IN(LINEAR_DECAY) |
            OP_IN(LINEAR_BETA),
    .bwd_reads = OP_IN(LINEAR_Q) | OP_IN(LINEAR_K) | OP_IN(LINEAR_V) | OP_IN(LINEAR_DECAY) | OP_IN(LINEAR_BETA),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { plan, forward, backward, NULL },
    .flops = flops,
};
