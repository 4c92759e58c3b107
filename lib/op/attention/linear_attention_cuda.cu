/* linear_attention_cuda.cu - see linear_attention.c. A thread block processes one head of k and v
 * of one sample, token by token. In forward a thread owns columns of the state [d, dv], so threads
 * never wait for each other. In backward each token has two phases with a barrier between them: a
 * thread owns columns in the first, rows in the second. The states of a head are consecutive in
 * scratch. All sums have a fixed order. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/attention/linear_attention.h"
#include "op/op_priv.h"
}

namespace {

struct numbers {
    const float *in[LINEAR_INPUTS];
    const float *dout, *dlast;    /* NULL: no gradient arrives */
    float *out, *last, *kept;     /* last, kept: NULL: not requested */
    float *d[LINEAR_INPUTS];      /* NULL: not requested */
    bool adds[LINEAR_INPUTS];
    float *work;                  /* scratch of all heads */
    float *db;                    /* [batch, t, key_heads], in scratch */
};

struct token {
    const float *k, *v, *g;
    float beta;
};

__device__ inline token token_of(const linear_attention &a, const numbers &n, int64_t b, int64_t h,
                                 int64_t i)
{
    const int64_t at = b * a.t + i, head = at * a.key_heads + h;

    return { n.in[LINEAR_K] + head * a.d, n.in[LINEAR_V] + head * a.dv,
             a.has_decay ? n.in[LINEAR_DECAY] + head * a.decays : NULL,
             a.has_beta ? n.in[LINEAR_BETA][a.betas > 1 ? head : at] : 1.0f };
}

__device__ inline float decay_of(const linear_attention &a, const token &t, int64_t row)
{
    return t.g == NULL ? 1.0f : expf(t.g[a.decays > 1 ? row : 0]);
}

/* Computes column m of the state after the token; from and to may be the same. */
__device__ inline void advance(const linear_attention &a, const token &t, int64_t m,
                               const float *from, float *to)
{
    float seen = 0, u;

    for (int64_t i = 0; i < a.d; i++) {
        const float x = from[i * a.dv + m] * decay_of(a, t, i);

        to[i * a.dv + m] = x;
        seen += x * t.k[i];
    }
    u = a.has_beta ? t.beta * (t.v[m] - seen) : t.v[m];
    for (int64_t i = 0; i < a.d; i++)
        to[i * a.dv + m] += t.k[i] * u;
}

__global__ void forward_of(const linear_attention a, const numbers n)
{
    const int64_t head = blockIdx.x, b = head / a.key_heads, h = head % a.key_heads,
                  shared = a.heads / a.key_heads;
    const int64_t size = a.d * a.dv;
    float *s = n.work + head * size;

    for (int64_t m = threadIdx.x; m < a.dv; m += blockDim.x) {
        for (int64_t i = 0; i < a.d; i++)
            s[i * a.dv + m] =
                n.in[LINEAR_PAST] != NULL ? n.in[LINEAR_PAST][head * size + i * a.dv + m] : 0.0f;
        for (int64_t at = 0; at < a.t; at++) {
            const token t = token_of(a, n, b, h, at);

            if (n.kept != NULL && at % a.chunk == 0)
                for (int64_t i = 0; i < a.d; i++)
                    n.kept[(head * a.n_chunks + at / a.chunk) * size + i * a.dv + m] =
                        s[i * a.dv + m];
            advance(a, t, m, s, s);
            for (int64_t q = h * shared; q < (h + 1) * shared; q++) {
                const int64_t place = (b * a.t + at) * a.heads + q;
                const float *row = n.in[LINEAR_Q] + place * a.d;
                float o = 0;

                for (int64_t i = 0; i < a.d; i++)
                    o += row[i] * s[i * a.dv + m];
                n.out[place * a.dv + m] = a.scale * o;
            }
        }
        if (n.last != NULL)
            for (int64_t i = 0; i < a.d; i++)
                n.last[head * size + i * a.dv + m] = s[i * a.dv + m];
    }
}

struct room { /* scratch of a head */
    float *states, *ds, *decayed, *u, *r, *du, *bdu, *dg;
};

__host__ __device__ inline int64_t room_floats(const linear_attention &a)
{
    return (a.chunk + 3) * a.d * a.dv + 4 * a.dv + a.d;
}

__device__ inline room room_of(const linear_attention &a, float *work, int64_t head)
{
    const int64_t size = a.d * a.dv;
    float *at = work + head * room_floats(a);
    room r;

    r.states = at;
    r.ds = at + (a.chunk + 1) * size;
    r.decayed = r.ds + size;
    r.u = r.decayed + size;
    r.r = r.u + a.dv;
    r.du = r.r + a.dv;
    r.bdu = r.du + a.dv;
    r.dg = r.bdu + a.dv;
    return r;
}

__device__ inline void store(const numbers &n, int which, int64_t at, float x)
{
    if (n.d[which] != NULL)
        n.d[which][at] = n.adds[which] ? n.d[which][at] + x : x;
}

/* First phase, by columns: adds the contributions of the queries to dS; computes the state after
 * the decay, u, r = v - A^T k, du and b du. */
__device__ void columns(const linear_attention &a, const numbers &n, const room &w, const token &t,
                        int64_t at, int64_t h, const float *before)
{
    const int64_t shared = a.heads / a.key_heads;

    for (int64_t m = threadIdx.x; m < a.dv; m += blockDim.x) {
        float seen = 0, du = 0;

        for (int64_t q = h * shared; n.dout != NULL && q < (h + 1) * shared; q++) {
            const float *row = n.in[LINEAR_Q] + (at * a.heads + q) * a.d;
            const float d = a.scale * n.dout[(at * a.heads + q) * a.dv + m];

            for (int64_t i = 0; i < a.d; i++)
                w.ds[i * a.dv + m] += row[i] * d;
        }
        for (int64_t i = 0; i < a.d; i++) {
            const float x = before[i * a.dv + m] * decay_of(a, t, i);

            w.decayed[i * a.dv + m] = x;
            seen += x * t.k[i];
            du += w.ds[i * a.dv + m] * t.k[i];
        }
        w.r[m] = t.v[m] - seen;
        w.u[m] = a.has_beta ? t.beta * w.r[m] : t.v[m];
        w.du[m] = du;
        w.bdu[m] = a.has_beta ? t.beta * du : 0.0f;
        store(n, LINEAR_V, (at * a.key_heads + h) * a.dv + m, a.has_beta ? w.bdu[m] : du);
    }
}

/* Second phase, by rows: computes dq, dk, dg, and replaces dS by that of the state before the
 * token. */
__device__ void rows(const linear_attention &a, const numbers &n, const room &w, const token &t,
                     int64_t at, int64_t h, const float *after)
{
    const int64_t shared = a.heads / a.key_heads, head = at * a.key_heads + h;

    for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
        const float by = decay_of(a, t, i);
        float dk = 0, dg = 0;

        for (int64_t q = h * shared; q < (h + 1) * shared; q++) {
            const int64_t place = at * a.heads + q;
            float dq = 0;

            for (int64_t m = 0; n.dout != NULL && m < a.dv; m++)
                dq += after[i * a.dv + m] * n.dout[place * a.dv + m];
            store(n, LINEAR_Q, place * a.d + i, a.scale * dq);
        }
        for (int64_t m = 0; m < a.dv; m++) {
            const float d = w.ds[i * a.dv + m], x = w.decayed[i * a.dv + m],
                        all = d - t.k[i] * w.bdu[m];

            dk += d * w.u[m] - x * w.bdu[m];
            dg += all * x;
            w.ds[i * a.dv + m] = all * by;
        }
        store(n, LINEAR_K, head * a.d + i, dk);
        w.dg[i] = dg;
        if (a.decays > 1)
            store(n, LINEAR_DECAY, head * a.decays + i, dg);
    }
}

/* Computes the sums over columns and rows that belong to the whole head. */
__device__ void totals(const linear_attention &a, const numbers &n, const room &w, int64_t head)
{
    float db = 0, dg = 0;

    for (int64_t m = 0; a.has_beta && m < a.dv; m++)
        db += w.du[m] * w.r[m];
    if (a.has_beta)
        n.db[head] = db;
    for (int64_t i = 0; a.decays == 1 && i < a.d; i++)
        dg += w.dg[i];
    if (a.decays == 1)
        store(n, LINEAR_DECAY, head, dg);
}

__global__ void backward_of(const linear_attention a, const numbers n)
{
    const int64_t head = blockIdx.x, b = head / a.key_heads, h = head % a.key_heads,
                  size = a.d * a.dv;
    const room w = room_of(a, n.work, head);

    for (int64_t e = threadIdx.x; e < size; e += blockDim.x)
        w.ds[e] = n.dlast != NULL ? n.dlast[head * size + e] : 0.0f;
    for (int64_t chunk = a.n_chunks; chunk-- > 0;) {
        const int64_t first = chunk * a.chunk, end = first + a.chunk < a.t ? first + a.chunk : a.t;

        __syncthreads();
        for (int64_t m = threadIdx.x; m < a.dv; m += blockDim.x) {
            for (int64_t i = 0; i < a.d; i++)
                w.states[i * a.dv + m] = n.kept[(head * a.n_chunks + chunk) * size + i * a.dv + m];
            for (int64_t i = first; i < end; i++)
                advance(a, token_of(a, n, b, h, i), m, w.states + (i - first) * size,
                        w.states + (i - first + 1) * size);
        }
        for (int64_t i = end; i-- > first;) {
            const token t = token_of(a, n, b, h, i);
            const float *before = w.states + (i - first) * size;

            __syncthreads();
            columns(a, n, w, t, b * a.t + i, h, before);
            __syncthreads();
            rows(a, n, w, t, b * a.t + i, h, before + size);
            __syncthreads();
            if (threadIdx.x == 0)
                totals(a, n, w, (b * a.t + i) * a.key_heads + h);
        }
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < size; e += blockDim.x)
        store(n, LINEAR_PAST, head * size + e, w.ds[e]);
}

/* One thread per beta: sums over the heads that read it. */
__global__ void sum_betas(const linear_attention a, const numbers n)
{
    const int64_t each = a.key_heads / a.betas, count = a.batch * a.t * a.betas;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;

        for (int64_t h = 0; h < each; h++)
            sum += n.db[i * each + h];
        store(n, LINEAR_BETA, i, sum);
    }
}

numbers numbers_of(const struct op_call *c)
{
    const linear_attention *a = (const linear_attention *)c->param;
    numbers n = {};

    for (uint32_t i = 0; i < c->n_in; i++) {
        n.in[i] = c->in[i] != NULL ? (const float *)c->in[i]->data : NULL;
        if (c->din != NULL && c->din[i] != NULL) {
            n.d[i] = (float *)c->din[i]->data;
            n.adds[i] = op_cuda_adds(c, i);
        }
    }
    n.kept = (float *)c->save;
    n.work = (float *)c->scratch;
    n.db = n.work + a->batch * a->key_heads * room_floats(*a);
    return n;
}

unsigned threads_of(const linear_attention *a)
{
    const int64_t most = a->d > a->dv ? a->d : a->dv;

    return most >= (int64_t)OP_THREADS ? OP_THREADS : (unsigned)((most + 31) / 32 * 32);
}

int plan(struct op_plan *p, struct err *err)
{
    const linear_attention *a = (const linear_attention *)p->param;
    const int64_t heads = a->batch * a->key_heads;

    (void)err; /* cannot fail */
    p->save_bytes = p->training ? (size_t)linear_kept(a) * sizeof(float) : 0;
    p->scratch_bytes =
        (size_t)(p->training ? heads * (room_floats(*a) + a->t) : heads * linear_state(a)) *
        sizeof(float);
    return 0;
}

int forward(const struct op_call *c, struct err *err)
{
    const linear_attention *a = (const linear_attention *)c->param;
    numbers n = numbers_of(c);
    const unsigned blocks = (unsigned)(a->batch * a->key_heads);

    n.out = (float *)c->out[0]->data;
    n.last = c->n_out > 1 && c->out[1] != NULL ? (float *)c->out[1]->data : NULL;
    if (blocks == 0)
        return 0;
    CUDA_LAUNCH(forward_of, blocks, threads_of(a), 0, op_stream(c), *a, n);
    return cuda_launched(err);
}

int backward(const struct op_call *c, struct err *err)
{
    const linear_attention *a = (const linear_attention *)c->param;
    numbers n = numbers_of(c);
    const unsigned blocks = (unsigned)(a->batch * a->key_heads);

    n.dout = c->dout[0] != NULL ? (const float *)c->dout[0]->data : NULL;
    n.dlast = c->n_out > 1 && c->dout[1] != NULL ? (const float *)c->dout[1]->data : NULL;
    if (n.dout == NULL && n.dlast == NULL)
        return op_cuda_zero(c, err);
    if (blocks == 0)
        return 0;
    CUDA_LAUNCH(backward_of, blocks, threads_of(a), 0, op_stream(c), *a, n);
    if (a->has_beta && n.d[LINEAR_BETA] != NULL && a->t > 0)
        CUDA_LAUNCH(sum_betas, op_blocks((size_t)(a->batch * a->t * a->betas), OP_THREADS),
                    OP_THREADS, 0, op_stream(c), *a, n);
    return cuda_launched(err);
}

} // namespace

OP_CUDA(op_linear_attention, .plan = plan, .fwd = forward, .bwd = backward);
